"""The HTTP API of the simulated vLLM answers like the recorded responses of a real one."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure.speculation import compute_acceptance
from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.engine import Engine
from sparkwright.sandbox.vllm.metrics import POSITION_METRIC
from sparkwright.sandbox.vllm.model import parse_drafts
from tests.remote.sshd import free_port
from tests.sandbox.vllm.serve_help import HELP
from tests.sandbox.vllm.test_startup import LLAMA, QWEN3NEXT
from tests.waiting import wait_until

DATA = HELP.parent / "qwen3next-eager"
#: recorded from a real 0.32.0 on a CPU, whose draft model is the same as the main model
DRAFTED = HELP.parents[1] / "vllm-0.32.0-speculation/draft-model"
NAME = "/models/tiny-qwen3next"
CHAT_BODY = {"model": NAME, "messages": [{"role": "user", "content": "Say ok."}], "max_tokens": 16}


class RunningServer:
    """A running simulated vLLM."""

    def __init__(self, folder: Path, config: dict[str, Any], *words: str) -> None:
        (folder / "config.json").write_text(json.dumps(config))
        self.port, self.fault = free_port(), ""
        ready = threading.Event()
        self.engine = Engine(
            [NAME, "--enforce-eager", "--max-model-len", "4096", *words],
            api=VllmApi,
            version="0.32.0",
            log=lambda line: ready.set() if "startup complete" in line else None,
            host_path=lambda _: folder,
            listen=("127.0.0.1", self.port),
            fault=lambda: self.fault,
        )
        self._thread = threading.Thread(target=self.engine.run)
        self._thread.start()
        assert ready.wait(10)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, data, _ = self.ask(method, path, body, **headers)
        return status, json.loads(data)

    def events(self, path: str, body: Any) -> list[Any]:
        _, data, headers = self.ask("POST", path, {**body, "stream": True})
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        return [read_event(line) for line in data.decode().split("\n\n") if line]

    def begin_chat(self, **fields: Any) -> http.client.HTTPConnection:
        """Request a long answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = {**CHAT_BODY, "max_tokens": 2000, "ignore_eos": True, **fields}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        return connection

    def metrics(self) -> dict[str, float]:
        rows = self.ask("GET", "/metrics")[1].decode().splitlines()
        return {row.rsplit(" ", 1)[0]: float(row.rsplit(" ", 1)[1]) for row in rows if not row.startswith("#")}

    def metric(self, name: str, **labels: str) -> float:
        all_labels = {"engine": "0", "model_name": self.engine.config.served_names[0], **labels}
        text = ",".join(f'{key}="{value}"' for key, value in sorted(all_labels.items()))
        return self.metrics()[f"{name}{{{text}}}"]

    def stop(self) -> None:
        self.engine.stop()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()


def read_event(text: str) -> Any:
    assert text.startswith("data: ")
    return "[DONE]" if text == "data: [DONE]" else json.loads(text[6:])


def read_recorded(name: str, folder: Path = DATA) -> tuple[int, str]:
    head, _, body = (folder / name).read_text().partition("\n\n")
    return int(head.split()[1]), body


def read_real_events(name: str) -> list[Any]:
    return [read_event(text) for text in read_recorded(name)[1].split("\n\n") if text.strip()]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunningServer]]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    running: list[RunningServer] = []

    def begin(*words: str, config: dict[str, Any] = QWEN3NEXT) -> RunningServer:
        running.append(RunningServer(tmp_path, config, *words))
        return running[-1]

    yield begin
    for item in running:
        item.stop()


def shape(value: Any) -> Any:
    """Return a value with its texts and numbers replaced by None, so that only the structure is compared."""
    if isinstance(value, dict):
        return {key: shape(field) for key, field in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


def test_simple_endpoints_answer_as_recorded(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    for path, name in (("/health", "health"), ("/ping", "ping"), ("/load", "load"), ("/version", "version")):
        assert server.ask("GET", path)[:2] == (200, read_recorded(f"{name}.txt")[1].strip().encode()), path
    assert server.json("GET", "/nope") == (404, {"detail": "Not Found"})
    status, models = server.json("GET", "/v1/models")
    real = json.loads(read_recorded("models.txt")[1])
    model, real_model = models["data"][0], real["data"][0]
    assert status == 200 and model["id"] == real_model["id"]
    assert sorted(model) == sorted(real_model)
    assert sorted(model["permission"][0]) == sorted(real_model["permission"][0])


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_a_complete_answer_has_the_real_fields(serve: Callable[..., RunningServer], name: str) -> None:
    path, body = {
        "chat": ("/v1/chat/completions", CHAT_BODY),
        "completion": ("/v1/completions", {"model": NAME, "prompt": "abc", "max_tokens": 8}),
    }[name]
    status, answer = serve().json("POST", path, body)
    real = json.loads(read_recorded(f"{name}.json.txt")[1])
    omitted = {"ec_transfer_params", "prompt_logprobs", "prompt_token_ids", "prompt_text"}  # always null
    assert status == 200
    assert shape(real["choices"]) == shape(answer["choices"])
    assert set(real) - omitted <= set(answer)
    assert real["usage"].keys() == answer["usage"].keys()
    assert answer["usage"]["completion_tokens"] == real["usage"]["completion_tokens"]
    assert re.fullmatch(r"(chatcmpl|cmpl)-[0-9a-f]{16}", answer["id"]) and answer["object"] == real["object"]


@pytest.mark.parametrize(("name", "usage"), [("chat-stream.sse.txt", True), ("chat-stream-nousage.sse.txt", False)])
def test_a_stream_has_the_chunks_of_the_real_engine(
    serve: Callable[..., RunningServer], name: str, usage: bool
) -> None:
    real = read_real_events(name)
    tokens = 16 if usage else len(real) - 2
    options = {"stream_options": {"include_usage": True}} if usage else {}
    events = serve().events("/v1/chat/completions", {**CHAT_BODY, "max_tokens": tokens, **options})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert shape(events[0]) == shape(real[0])
    assert shape(events[1]) == shape(real[1])
    assert [shape(item) for item in events[-3:]] == [shape(item) for item in real[-3:]]
    assert len(events) == 1 + tokens + usage + 1  # the role, one chunk per token, the usage, the end
    assert events[-1] == real[-1] == "[DONE]"
    assert any("usage" in item for item in events[:-1]) is usage
    if usage:
        assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 16
    assert events[-3 if usage else -2]["choices"][0]["finish_reason"] == "length"


def test_thinking_can_be_disabled_by_the_request(serve: Callable[..., RunningServer]) -> None:
    server = serve("--reasoning-parser", "qwen3")
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    answers = [server.json("POST", "/v1/chat/completions", {**CHAT_BODY, **fields})[1] for fields in ({}, off)]
    messages = [answer["choices"][0]["message"] for answer in answers]
    assert [bool(message["content"]) for message in messages] == [False, True]
    assert [bool(message["reasoning"]) for message in messages] == [True, False]


def test_error_messages_are_those_of_the_real_engine(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    for name, path, body in (
        ("err-unknown-model.txt", "/v1/chat/completions", {**CHAT_BODY, "model": "not-here"}),
        ("err-too-long.txt", "/v1/chat/completions", {**CHAT_BODY, "max_tokens": 10_000_000}),
        ("err-prompt-too-long.txt", "/v1/completions", {"model": NAME, "prompt": "x" * 120_000}),
    ):
        status, text = read_recorded(name)
        assert server.json("POST", path, body) == (status, json.loads(text)), name
    body = {"model": NAME, "prompt": "x" * 4 * 4090, "max_tokens": 100}
    status, answer = server.json("POST", "/v1/completions", body)
    assert status == 400 and "4096 tokens. However, you requested 100 output tokens" in answer["error"]["message"]
    assert server.json("POST", "/v1/chat/completions", {"model": NAME})[0] == 400


def test_a_key_is_required_under_v1_only(serve: Callable[..., RunningServer]) -> None:
    server = serve("--api-key", "secret", "other", "--served-model-name", "acme/tiny", "second")
    status, text = read_recorded("models.txt", HELP.parent / "llama-named-apikey")
    assert server.json("GET", "/v1/models") == (status, json.loads(text))
    assert server.json("POST", "/v1/chat/completions", CHAT_BODY, Authorization="Bearer wrong")[0] == 401
    for key in ("secret", "other"):
        names = [item["id"] for item in server.json("GET", "/v1/models", Authorization=f"Bearer {key}")[1]["data"]]
        assert names == ["acme/tiny", "second"]
    assert {server.ask("GET", path)[0] for path in ("/health", "/version", "/metrics")} == {200}


def test_an_engine_that_exits_returns_500_and_is_unhealthy(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    server.fault = "engine-exits"
    status, text = read_recorded("chat.json.txt", HELP.parent / "jamba-eager")
    assert server.json("POST", "/v1/chat/completions", CHAT_BODY) == (status, json.loads(text))
    assert server.ask("GET", "/health")[0] == 503


def test_metrics_have_the_real_names_labels_and_buckets(serve: Callable[..., RunningServer]) -> None:
    server = serve(config=LLAMA)
    real_rows = read_recorded("metrics-before.txt", HELP.parent / "llama-eager")[1].splitlines()
    real = {name_and_labels(row) for row in real_rows if not row.startswith("#")}
    ours = {name_and_labels(row) for row in server.metrics()}
    info, real_info = (next(row for row in rows if row[0] == "vllm:cache_config_info") for rows in (ours, real))
    assert ours - {info} <= real
    assert dict(info[1]).keys() <= dict(real_info[1]).keys()
    types = {row for row in real_rows if row.startswith("# TYPE vllm:")}
    assert {row for row in server.ask("GET", "/metrics")[1].decode().splitlines() if row.startswith("# TYPE")} <= types
    for name in ("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"):
        assert {row for row in real if row[0] == name} == {row for row in ours if row[0] == name}


def name_and_labels(row: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return a row's name and labels, with values only of `le` and `finished_reason`: others differ between servers."""
    name, _, rest = row.partition("{")
    labels = re.findall(r'(\w+)="([^"]*)"', rest.rpartition("}")[0])
    return name.split(" ")[0], tuple((key, value if key in ("le", "finished_reason") else "") for key, value in labels)


def test_metrics_count_tokens_and_requests(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    usage = server.json("POST", "/v1/chat/completions", CHAT_BODY)[1]["usage"]
    assert server.metric("vllm:generation_tokens_total") == 16
    assert server.metric("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert server.metric("vllm:request_success_total", finished_reason="length") == 1
    assert server.metric("vllm:time_to_first_token_seconds_count") == 1
    assert server.metric("vllm:inter_token_latency_seconds_count") == 15
    assert server.metric("vllm:inter_token_latency_seconds_sum") > 0.7 * 15 / 47
    info = next(row for row in server.metrics() if row.startswith("vllm:cache_config_info"))
    assert 'mamba_cache_mode="align"' in info and f'block_size="{server.engine.config.block_tokens}"' in info


@pytest.mark.parametrize(("config", "hits"), [(QWEN3NEXT, 1760), (LLAMA, 1792)], ids=["hybrid", "dense"])
def test_a_repeated_prompt_hits_whole_blocks_of_the_prefix_cache(
    serve: Callable[..., RunningServer], config: Any, hits: int
) -> None:
    server = serve(config=config)
    body = {"model": NAME, "prompt": list(range(1801)), "max_tokens": 1}
    for _ in range(2):
        server.json("POST", "/v1/completions", body)
    assert server.metric("vllm:prefix_cache_queries_total") == 3602
    assert server.metric("vllm:prefix_cache_hits_total") == hits
    assert 1801 - hits <= server.engine.config.block_tokens


def test_without_prefix_caching_there_are_no_lookups(serve: Callable[..., RunningServer]) -> None:
    server = serve("--no-enable-prefix-caching")
    for _ in range(2):
        server.json("POST", "/v1/completions", {"model": NAME, "prompt": list(range(600)), "max_tokens": 1})
    assert server.metric("vllm:prefix_cache_queries_total") == 0


def request_threads() -> set[threading.Thread]:
    """Return the request threads of all servers in this process, including those of other tests."""
    return {thread for thread in threading.enumerate() if "process_request_thread" in thread.name}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["", "wedge"])
def test_a_disconnected_client_ends_its_request(serve: Callable[..., RunningServer], stream: bool, fault: str) -> None:
    server = serve()
    connection = server.begin_chat(stream=stream)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
    assert server.metric("vllm:kv_cache_usage_perc") > 0
    server.fault = fault
    connection.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 1


def test_a_stream_begins_with_the_first_token(serve: Callable[..., RunningServer]) -> None:
    """The role comes with it: a client that has read the first chunk is counted as running."""
    server = serve("--max-num-seqs", "1")
    running = server.begin_chat(stream=True)
    assert b"assistant" in running.getresponse().readline()
    assert server.metric("vllm:num_requests_running") == 1
    waiting = server.begin_chat(stream=True)
    wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1)
    assert b"assistant" not in waiting.sock.recv(65536, socket.MSG_PEEK)
    running.close()
    waiting.close()


def test_a_wedged_server_counts_no_new_requests(serve: Callable[..., RunningServer]) -> None:
    """Like a real server whose engine core was stopped: it accepts the request, but its counters do not change."""
    server = serve()
    server.fault = "wedge"
    others = request_threads()
    connection = server.begin_chat()
    wait_until(lambda: bool(request_threads() - others))
    assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
    connection.close()
    wait_until(lambda: not request_threads() - others)
    assert server.metric("vllm:prompt_tokens_total") == 0


def test_a_stop_aborts_a_stream(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    answer = server.begin_chat(stream=True).getresponse()
    assert answer.readline()
    server.engine.stop()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()


def test_a_stream_ends_with_an_error_when_a_rank_is_lost(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    assert server.engine.group is not None
    link, peer = socket.socketpair()
    server.engine.group.links.append(link)
    answer = server.begin_chat(stream=True).getresponse()
    assert answer.readline()
    peer.close()
    error, end = answer.read().split(b"\n\n")[-3:-1]
    assert b"EngineCore encountered an issue" in error and end == b"data: [DONE]"


SPECULATIVE = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')


#: log line of vllm/v1/spec_decode/metrics.py in 0.32.0
REAL_STATISTICS = (
    r"SpecDecoding metrics: Mean acceptance length: [\d.]+, Accepted throughput: [\d.]+ tokens/s, Drafted throughput: "
    r"[\d.]+ tokens/s, Accepted: \d+ tokens, Drafted: \d+ tokens, Per-position acceptance rate: [01]\.\d{3}, [01]\.\d{3}, "
    r"Avg Draft acceptance rate: [\d.]+%"
)


def read_counters(server: RunningServer) -> dict[str, float]:
    return HTTP.counters(server.ask("GET", "/metrics")[1].decode())


def stream_events(server: RunningServer, tokens: int) -> list[Any]:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**CHAT_BODY, "max_tokens": tokens, "ignore_eos": True, "stream_options": options}
    return server.events("/v1/chat/completions", body)[1:-2]


def test_drafts_are_counted_by_position_and_a_chunk_has_all_accepted_tokens(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkwright.sandbox.serving.process.GPU_TOK_PER_S", 4000.0)
    server = serve(*SPECULATIVE)
    before = read_counters(server)
    chunks = stream_events(server, 120)
    accepted = compute_acceptance(before, read_counters(server))
    assert accepted is not None and accepted.positions == pytest.approx((0.85, 0.68), abs=0.04)
    assert len(chunks) == pytest.approx(120 / (1 + sum(accepted.positions)), abs=2)
    assert chunks[-1]["usage"]["completion_tokens"] == 120


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/chat/completions", {**CHAT_BODY, "max_tokens": 60}, "completion_tokens"),
        ("/v1/messages", {**CHAT_BODY, "max_tokens": 60}, "output_tokens"),
        ("/v1/responses", {"model": NAME, "input": "Say ok.", "max_output_tokens": 60}, "output_tokens"),
    ],
)
def test_usage_counts_tokens_although_drafts_merge_them_into_pieces(
    serve: Callable[..., RunningServer],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    key: str,
) -> None:
    monkeypatch.setattr("sparkwright.sandbox.serving.process.GPU_TOK_PER_S", 4000.0)
    server = serve(*SPECULATIVE)
    before = read_counters(server)
    usage = server.json("POST", path, {**body, "ignore_eos": True})[1]["usage"]
    after = read_counters(server)
    assert usage[key] == after["generated"] - before["generated"] > 30


def test_draft_statistics_have_the_format_of_the_real_engine() -> None:
    given = json.loads((DRAFTED / "speculative-config.json").read_text())
    drafts = parse_drafts({**given, "method": "mtp", "model": None}, given["model"], Path, is_good=True)
    assert drafts is not None and not drafts.log_line(time.monotonic() + 60)
    for _ in range(100):
        drafts.begin_step()
    log = (DRAFTED / "server.log").read_text()
    real = re.findall(r"SpecDecoding metrics: .*", log)
    assert real and all(re.fullmatch(REAL_STATISTICS, line) for line in [*real, drafts.log_line(time.monotonic() + 60)])
    assert repr(drafts).replace("'mtp'", "'draft_model'") in log
    names = set(re.findall(r"^(vllm:\w+_total)", (DRAFTED / "metrics.txt").read_text(), re.M))
    assert names == {*drafts.counters(), POSITION_METRIC}
