"""The HTTP API and the log of the real llama-server, compared with sparkwright's assumptions."""

import threading
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api
from sparkwright.engines.llama_cpp.http import HTTP
from sparkwright.engines.llama_cpp.log import LOG
from sparkwright.engines.log.reader import read_log
from sparkwright.measure import stream
from tests.real_llama import server as servers
from tests.real_llama.conftest import CONTEXT, SLOTS

KEY = "0123456789abcdef"
BODY: dict[str, Any] = openai_api.build_stream_request(HTTP, "tiny", "hello", 40)


def read_counters(server: servers.Server, key: str = "") -> dict[str, float]:
    return HTTP.counters(server.ask(HTTP.metrics_path, key=key).body)


def test_every_path_reports_loading(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, "-c", "512", "-np", "1") as server:
        assert server.loading
        assert {item.status for item in server.loading} <= set(HTTP.loading_statuses)
        assert server.loading[0].body["error"]["message"] == "Loading model"


def test_every_metric_exists(llama: servers.Server) -> None:
    assert set(read_counters(llama)) == set(HTTP.roles)


def test_the_heartbeat_moves_during_a_stream(llama: servers.Server) -> None:
    before = read_counters(llama)
    samples: list[dict[str, float]] = []
    chunks = llama.stream({**BODY, "max_tokens": 3000})
    next(chunks)
    while (
        len({item[engine_http.HEARTBEAT] for item in samples}) < 5
    ):  # the server generates even if the chunks are not read
        samples.append(read_counters(llama))
        assert samples[-1][engine_http.RUNNING] == 1
    for _ in chunks:
        pass
    after = read_counters(llama)
    assert HTTP.has_separate_heartbeat
    assert {item[engine_http.GENERATED] for item in samples} == {before[engine_http.GENERATED]}
    beats = [item[engine_http.HEARTBEAT] for item in samples]
    assert beats == sorted(beats) and beats[0] > before[engine_http.HEARTBEAT]
    assert after[engine_http.RUNNING] == 0
    assert after[engine_http.GENERATED] - before[engine_http.GENERATED] == 3000


def test_a_cached_prompt_counts_as_query_and_hit(llama: servers.Server) -> None:
    body = openai_api.build_request(HTTP, "tiny", "the same words again", 2)
    llama.ask(openai_api.CHAT_PATH, body)
    before = read_counters(llama)
    usage = llama.ask(openai_api.CHAT_PATH, body).body["usage"]
    after = read_counters(llama)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < usage["prompt_tokens"]
    assert after[engine_http.PREFIX_QUERIES] - before[engine_http.PREFIX_QUERIES] == usage["prompt_tokens"]
    assert after[engine_http.PREFIX_HITS] - before[engine_http.PREFIX_HITS] == cached


def test_requests_beyond_the_slots_wait(llama: servers.Server) -> None:
    open_streams = [llama.stream({**BODY, "max_tokens": tokens}) for tokens in (*[6000] * SLOTS, 40)]
    for open_stream in open_streams[:SLOTS]:
        next(open_stream)
    # the headers arrive only when a slot is free
    third = threading.Thread(target=lambda: list(open_streams[SLOTS]))
    third.start()
    waiting = 0.0
    while third.is_alive() and not waiting:
        waiting = read_counters(llama)[engine_http.WAITING]
    for open_stream in open_streams[:SLOTS]:
        open_stream.close()
    third.join()
    assert waiting == 1


def test_a_stream_has_the_token_count_of_the_server(llama: servers.Server) -> None:
    chunks = list(llama.stream(BODY))
    assert chunks[-1]["usage"]["completion_tokens"] == chunks[-1]["timings"]["predicted_n"] == 40
    cumulative = [chunk["timings"]["predicted_n"] for chunk in chunks if chunk["choices"] and "timings" in chunk]
    assert cumulative == sorted(set(cumulative)) and cumulative[-1] <= 40
    measured = stream.measure_stream(llama.base_url, BODY, counter_keys=HTTP.token_count_keys)
    assert (measured.tokens, measured.approximate) == (40, False)
    assert [tokens for _, tokens in measured.points] == sorted({tokens for _, tokens in measured.points})
    assert len(measured.points) > 1


def test_context_and_slots_are_read(llama: servers.Server, tiny: Path) -> None:
    settings = HTTP.parse_settings(llama.ask(HTTP.settings_path).body)
    assert settings["max_model_len"] == CONTEXT // SLOTS
    assert settings["max_concurrency"] == SLOTS
    assert settings["model_path"] == str(tiny)
    assert settings["served_name"] == "tiny"
    assert HTTP.parse_version(llama.ask(HTTP.version_path).body) == settings["version"] != ""
    assert openai_api.parse_models(HTTP, llama.ask(HTTP.models_path).body) == {"tiny": CONTEXT // SLOTS}


def test_a_context_longer_than_the_trained_one_is_capped_and_logged(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, "-c", "20000", "-np", "2") as server:
        assert HTTP.parse_settings(server.ask(HTTP.settings_path).body)["max_model_len"] == 8192
        assert server.wait_for_log("exceeds the training context of the model (8192) - capping")


def test_any_model_name_is_served(llama: servers.Server) -> None:
    answer = llama.ask(openai_api.CHAT_PATH, openai_api.build_request(HTTP, "quite another", "hello", 3))
    assert HTTP.accepts_any_name
    assert answer.status == 200
    assert answer.body["model"] == "tiny"
    assert openai_api.count_tokens(answer.body) == 3


def test_a_prompt_longer_than_a_slot_is_refused_with_both_lengths(llama: servers.Server) -> None:
    answer = llama.ask(openai_api.CHAT_PATH, openai_api.build_request(HTTP, "tiny", "x" * 9000, 3))
    assert answer.status == 400
    assert answer.body["error"]["type"] == "exceed_context_size_error"
    assert answer.body["error"]["n_ctx"] == CONTEXT // SLOTS < answer.body["error"]["n_prompt_tokens"]


@pytest.mark.parametrize("source", ["file", "variable"])
def test_with_a_key_only_public_paths_answer_without_it(tiny: Path, tmp_path: Path, source: str) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    words = ("--api-key-file", str(key_file)) if source == "file" else ()
    env = {HTTP.key_variable: KEY} if source == "variable" else {}
    with servers.serving(tmp_path, tiny, "-c", "512", "--metrics", *words, env=env) as server:
        paths = (HTTP.health_path, HTTP.models_path, HTTP.settings_path, HTTP.metrics_path, "/slots")
        assert {path for path in paths if server.ask(path).status == 200} == HTTP.public_paths
        assert {server.ask(path, key=KEY).status for path in paths} == {200}
        assert server.ask(openai_api.CHAT_PATH, BODY | {"stream": False}).status == 401
        assert KEY not in server.log


def test_without_their_flag_metrics_are_missing(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, "-c", "512") as server:
        assert server.ask(HTTP.metrics_path).status == 501


def test_sigterm_exits_with_0(tiny: Path, tmp_path: Path) -> None:
    with servers.running_server(tmp_path, "-m", str(tiny), "-c", "512", "-lv", "4") as server:
        # a SIGTERM before the main loop is lost, but /health answers 200 earlier: Docker would kill it
        assert server.wait_for_log("all slots are idle")
        assert server.stop() == 0


def test_the_log_matches_the_answers(llama: servers.Server) -> None:
    state, props = read_log(llama.log, LOG), llama.ask("/props").body
    answered = (props["total_slots"], props["default_generation_settings"]["n_ctx"], props["build_info"])
    assert (state.value("slots"), state.value("max_model_len"), state.value("version")) == answered
    assert (state.value("kv_cache_tokens"), state.value("slots"), state.ready) == (CONTEXT, SLOTS, True)
