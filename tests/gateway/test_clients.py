"""Clients with individual keys and limits in a real HAProxy."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import clients, render, usage
from sparkwright.gateway.model import Client
from sparkwright.host.gateway import haproxy_sockets
from tests.gateway.loopback import (
    KEY,
    Answer,
    RunningGateway,
    build_gateway,
    build_model,
    client_key,
    run_gateway,
    serve_models,
)
from tests.gateway.servers import CHAT, DEADLINE_S, StreamServer, needs_haproxy
from tests.gateway.test_operations import reload_gateway
from tests.waiting import wait_until

pytestmark = needs_haproxy
HI = [{"role": "user", "content": "hi"}]
CLIENTS = (
    Client("alice"),
    Client("bob", models=("org/small",)),
    Client("few", requests_per_minute=3),
    Client("one", concurrent=1),
    Client("over", expires_at_s=1_000_000_000),
    Client("soon", expires_at_s=4_000_000_000),
)
#: the answer to a client whose tokens of the day are used
QUOTA_SPENT = (403, "insufficient_quota")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, StreamServer]]:
    with StreamServer("one") as one, StreamServer("small") as small:
        yield {"one": one, "small": small}


@pytest.fixture(scope="module")
def lab(servers: dict[str, StreamServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    models = build_model("qwen", servers["one"]), build_model("org/small", servers["small"])
    with serve_models(tmp_path_factory.mktemp("gateway"), *models, named_clients=CLIENTS) as lab:
        yield lab


def chat_as(lab: RunningGateway, client: str, name: str = "qwen", **more: Any) -> Answer:
    return lab.chat({"model": name, "messages": HI, **more}, key=client_key(client))


def read_counts(lab: RunningGateway) -> dict[str, dict[str, int]]:
    """Return the counts since the process began, and the running requests."""
    table = haproxy_sockets.send_command(lab.sockets, f"show table {clients.TABLE_BACKEND}")
    names = [client.name for client in lab.gateway.named_clients]
    counts = {row["client"]: row for row in clients.client_usage(table, "", "", names)}
    metrics = lab.ask("GET", usage.METRICS_PATH).body.decode()
    pattern = r'^sparkwright_client_(\w+)_total\{client="(\w+)"\} ([\d.]+)$'
    for field, client, number in re.findall(pattern, metrics, re.M):
        if field == "queue_seconds":
            counts[client]["queue_ms"] = round(1000 * float(number))
        else:
            counts[client][field] = int(number)
    return counts


def wait_for_counts(lab: RunningGateway, client: str, **expected: int) -> dict[str, int]:
    """Return a client's counts once they have these values: an answer arrives a moment before it is counted."""
    return _wait_for_items(lambda: read_counts(lab)[client], expected)


def usage_file(sockets: Path) -> Path:
    """Return the path of today's file."""
    return sockets / f"usage.{time.strftime('%Y-%m-%d', time.gmtime())}"


def wait_for_file(lab: RunningGateway, client: str, **expected: int) -> None:
    """Wait until today's file has these counts of a client."""
    day = usage_file(lab.sockets)
    _wait_for_items(lambda: usage.parse_totals(day.read_text() if day.exists() else "").get(client, {}), expected)


def _wait_for_items(read: Callable[[], dict[str, int]], expected: dict[str, int]) -> dict[str, int]:
    until_s = time.monotonic() + DEADLINE_S
    while not expected.items() <= (items := read()).items():
        assert time.monotonic() < until_s, items
        time.sleep(0.02)
    return items


def token_usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated}


def test_haproxy_before_3_0_runs_scripts_in_one_thread(lab: RunningGateway) -> None:
    """With two threads, 2.6.12 crashed after about a thousand streams of clients with individual keys."""
    info = dict(re.findall(r"(?m)^(\w+): (.*)$", haproxy_sockets.send_command(lab.sockets, "show info")))
    is_old = tuple(map(int, re.findall(r"\d+", info["Version"])[:2])) < (3, 0)
    assert info["Nbthread"] == "1" or not is_old, info


def test_keys_of_clients_and_of_the_gateway_are_accepted_and_others_refused(lab: RunningGateway) -> None:
    body = {"model": "qwen", "messages": HI}
    assert chat_as(lab, "alice").status == chat_as(lab, "soon").status == 200
    assert lab.chat(body).status == 200
    assert lab.chat(body, key=None, headers={"x-api-key": client_key("alice")}).status == 200
    for key in ("nobody-key-0123456789", "alice"):
        assert lab.chat(body, key=key).error == (401, "invalid_api_key")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
def test_each_api_answers_a_client(lab: RunningGateway, path: str) -> None:
    body = {"model": "qwen", "messages": HI, "prompt": "hi", "input": "hi"}
    assert lab.ask("POST", path, body, key=client_key("alice")).status == 200


def test_a_client_can_use_only_its_models(lab: RunningGateway) -> None:
    assert chat_as(lab, "bob", "org/small").json["from"] == "small"
    assert chat_as(lab, "bob").error == (403, "model_not_allowed")


def test_an_adapter_is_allowed_without_its_model_and_the_model_without_it(server: StreamServer, tmp_path: Path) -> None:
    small = replace(build_model("small", server), aliases=("fast", "sql", "law"), adapters=("sql", "law"))
    named = (Client("all"), Client("base", models=("fast",)), Client("one", models=("sql",)))
    with serve_models(tmp_path, small, named_clients=named) as lab:
        allowed = {
            client.name: [name for name in small.names if chat_as(lab, client.name, name).status == 200]
            for client in named
        }
        assert chat_as(lab, "base", "sql").error == (403, "model_not_allowed")
        assert chat_as(lab, "one", "sql").json["from"] == "one"
        assert server.seen[-1]["body"]["model"] == "sql"
    assert allowed == {"all": ["small", "fast", "sql", "law"], "base": ["small", "fast"], "one": ["sql"]}


def test_an_expired_key_is_refused(lab: RunningGateway) -> None:
    assert chat_as(lab, "over").error == (401, "key_expired")
    assert lab.ask("GET", "/v1/models", key=client_key("over")).error == (401, "key_expired")


def test_requests_beyond_the_limit_per_minute_are_refused_and_counted(lab: RunningGateway) -> None:
    answers = [chat_as(lab, "few") for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].headers["retry-after"] == "5"
    assert "per-minute request limit" in answers[-1].json["error"]["message"]
    wait_for_counts(lab, "few", requests=3, refused=2, running=0)
    assert chat_as(lab, "alice").status == 200, "another client's limit was applied"


def test_requests_beyond_the_limit_of_concurrent_requests_are_refused(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    server = servers["one"]
    server.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat_as, lab, "one")
        try:
            wait_for_counts(lab, "one", running=1)
            assert chat_as(lab, "one").error == (429, "rate_limit_exceeded")
        finally:
            server.go_on.set()
        assert first.result().status == 200
    assert chat_as(lab, "one").status == 200
    wait_for_counts(lab, "one", requests=2, running=0, refused=1, errors=0)


def test_the_log_names_the_client_and_no_file_holds_a_key(lab: RunningGateway) -> None:
    chat_as(lab, "alice")
    wait_until(lambda: "{alice}" in (lab.folder / "log").read_text())
    metrics = lab.ask("GET", "/metrics").body.decode()
    files = "".join(path.read_text() for path in lab.folder.iterdir() if path.is_file())
    for secret in (KEY, *(client_key(client.name) for client in CLIENTS)):
        assert secret not in metrics and secret not in files


def test_without_clients_the_configuration_does_not_mention_them(server: StreamServer) -> None:
    assert "clients" not in render.render_files(build_gateway(build_model("qwen", server)))[render.CONFIG_FILE]


@pytest.fixture
def counting(server: StreamServer, tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway that has not counted anything yet."""
    named = (Client("alice", tokens_per_day=100), Client("bob"))
    with serve_models(tmp_path, build_model("qwen", server, slots=1), named_clients=named) as lab:
        yield lab


def test_a_client_s_tokens_per_day_stay_spent_after_a_reload_and_a_crash(counting: RunningGateway) -> None:
    for _ in range(2):
        assert chat_as(counting, "alice", usage=token_usage(40, 10)).status == 200
    wait_for_counts(counting, "alice", requests=2)
    answer = chat_as(counting, "alice")
    assert answer.error == QUOTA_SPENT and "token limit for today" in answer.json["error"]["message"]
    assert "retry-after" not in answer.headers, "an agent would wait for the rest of the day"
    assert chat_as(counting, "bob").status == 200
    wait_for_file(counting, "alice", prompt_tokens=80, generated_tokens=20, refused=1, estimated=0)
    reload_gateway(counting, (counting.folder / render.CONFIG_FILE).read_text(), "after")
    counting.up("qwen")
    assert chat_as(counting, "alice").error == QUOTA_SPENT
    with run_gateway(counting.folder.parent, counting.gateway) as second_run:
        second_run.up("qwen")
        assert chat_as(second_run, "alice").error == QUOTA_SPENT


def test_usage_is_read_from_a_stream_in_pieces_of_any_size(counting: RunningGateway) -> None:
    last_event = 'data: {"choices":[],"usage":{"prompt_tokens": 7,"completion_tokens": 3}}\n\n'
    for piece in (1, 5, len(last_event)):
        parts = [last_event[n : n + piece] for n in range(0, len(last_event), piece)]
        assert chat_as(counting, "bob", stream=True, parts=["data: 2\n\n" * 1000, *parts]).body.endswith(b"[DONE]\n\n")
    wait_for_counts(counting, "bob", requests=3, prompt_tokens=21, generated_tokens=9, estimated=0)


def test_an_absurd_usage_is_not_counted(counting: RunningGateway) -> None:
    for number in ("9" * 30, "-1", "null", "1e400"):
        part = f'data: {{"usage":{{"prompt_tokens":{number},"completion_tokens":{number}}}}}\n\n'
        assert chat_as(counting, "bob", stream=True, parts=[part]).status == 200
    assert wait_for_counts(counting, "bob", requests=4)["generated_tokens"] < 20
    wait_for_file(counting, "bob", requests=4)


def test_generated_text_that_looks_like_usage_is_not_counted(counting: RunningGateway) -> None:
    text = json.dumps({"choices": [{"text": '"usage": {"prompt_tokens": 1,"completion_tokens": 1}'}]})
    part = f'data: {{"usage":{{"prompt_tokens":9,"completion_tokens":8}}}}\ndata: {text}\n\n'
    chat_as(counting, "bob", stream=True, parts=[part])
    wait_for_counts(counting, "bob", requests=1, prompt_tokens=9, generated_tokens=8)


def test_the_tokens_of_a_stream_without_usage_or_a_client_are_estimated(
    counting: RunningGateway, server: StreamServer
) -> None:
    chat_as(counting, "bob", stream=True, parts=["data: 2\n\n"] * 8)
    assert wait_for_counts(counting, "bob", estimated=1, generated_tokens=10)["prompt_tokens"] > 0
    server.go_on.clear()
    response = counting.begin_stream(key=client_key("bob"), model="qwen", messages=HI)
    response.readline()
    response.close()
    counting.held[-1].close()
    wait_for_counts(counting, "bob", estimated=2)


def test_waiting_for_a_server_is_counted_as_queue_time(counting: RunningGateway, server: StreamServer) -> None:
    server.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(chat_as, counting, "bob")
        wait_for_counts(counting, "bob", running=2)
        queued_s = time.monotonic()
        wait_for_counts(counting, "bob", running=2)
        waited_ms = int(1000 * (time.monotonic() - queued_s))
        server.go_on.set()
    assert wait_for_counts(counting, "bob", requests=2)["queue_ms"] >= max(waited_ms, 1)


def test_only_the_gateways_own_key_reads_the_usage_of_clients(counting: RunningGateway) -> None:
    chat_as(counting, "bob", usage=token_usage(1, 1))
    assert counting.ask("GET", usage.METRICS_PATH, key=client_key("alice")).status == 404
    assert wait_for_counts(counting, "bob", requests=1)


def test_a_large_usage_file_is_summed_up_without_its_damaged_lines(server: StreamServer, tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    day = usage_file(tmp_path / "sockets")
    hostile = "x\n\n  \nalice 1 x\n" + "bob " + "9 " * 500 + "\neve 1 99999999999999999999\n"
    day.write_text(hostile + "alice 1 2 3 0 0 0 0\n" * 20_000)
    with serve_models(tmp_path, build_model("qwen", server), named_clients=(Client("alice"),)) as lab:
        wait_until(lambda: day.stat().st_size < 5000)
        wait_for_file(lab, "alice", prompt_tokens=40_000)
        assert chat_as(lab, "alice", usage=token_usage(1, 1)).status == 200
        wait_for_file(lab, "alice", prompt_tokens=40_001)


@pytest.mark.parametrize(
    "text", ["", "# table: -clients\n", "0x1: key=alice gpc0=x\n", "0x1: key=" + "a" * 400 + " gpc0=1\n"]
)
def test_a_damaged_table_of_clients_counts_as_zeros(text: str) -> None:
    (row,) = clients.client_usage(text, text, text, ["alice"])
    assert row == {"client": "alice", **dict.fromkeys((*usage.FIELDS, "running", "tokens_per_day"), 0)}
