"""Clients with keys and limits of their own, in a real HAProxy."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import clients, render, usage
from sparkwright.gateway.model import Client
from sparkwright.host.gateway import haproxy_sockets
from tests.gateway.loopback import (
    DEADLINE_S,
    KEY,
    Answer,
    RunningGateway,
    StreamServer,
    build_gateway,
    build_model,
    client_key,
    run_gateway,
)
from tests.gateway.test_operations import reload_gateway

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
HI = [{"role": "user", "content": "hi"}]
CLIENTS = (
    Client("alice"),
    Client("bob", models=("org/small",)),
    Client("few", requests_per_minute=3),
    Client("one", concurrent=1),
    Client("over", until_s=1_000_000_000),
    Client("soon", until_s=4_000_000_000),
)
#: the answer to a client whose tokens of the day are used
QUOTA_SPENT = (403, "insufficient_quota")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, StreamServer]]:
    server = {name: StreamServer(name) for name in ("one", "small")}
    yield server
    for item in server.values():
        item.shutdown()


@pytest.fixture(scope="module")
def lab(servers: dict[str, StreamServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    rendered = build_gateway(
        build_model("qwen", servers["one"]), build_model("org/small", servers["small"]), named=CLIENTS
    )
    with run_gateway(tmp_path_factory.mktemp("gateway"), rendered) as running_gateway:
        running_gateway.up("qwen", "org/small")
        yield running_gateway


def chat_as(lab: RunningGateway, client: str, name: str = "qwen", **more: Any) -> Answer:
    return lab.chat({"model": name, "messages": HI, **more}, key=client_key(client))


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def read_counts(lab: RunningGateway) -> dict[str, dict[str, int]]:
    """Return the counts since the process began, and the running requests."""
    table = haproxy_sockets.send_command(lab.sockets, f"show table {clients.TABLE_BACKEND}")
    rows = {
        row["client"]: row for row in clients.client_usage(table, "", "", [client.name for client in lab.gateway.named])
    }
    text = lab.ask("GET", usage.METRICS_PATH).body.decode()
    for client, seconds in re.findall(
        r'^sparkwright_client_queue_seconds_total\{client="(\w+)"\} ([\d.]+)$', text, re.M
    ):
        rows[client]["queue_ms"] = round(1000 * float(seconds))
    for field, client, number in re.findall(r'^sparkwright_client_(\w+)_total\{client="(\w+)"\} (\d+)$', text, re.M):
        rows[client][field] = int(number)
    return rows


def wait_for_counts(lab: RunningGateway, client: str, **expected: int) -> dict[str, int]:
    """Return a client's counts, once they have these values: an answer is read a moment before it is counted."""
    return _wait_for_items(lambda: read_counts(lab)[client], expected)


def wait_for_file(lab: RunningGateway, client: str, **expected: int) -> None:
    """Wait until the file of the day has these counts of a client."""
    day = lab.sockets / f"usage.{time.strftime('%Y-%m-%d', time.gmtime())}"
    _wait_for_items(lambda: usage.parse_totals(day.read_text() if day.exists() else "").get(client, {}), expected)


def _wait_for_items(read: Callable[[], dict[str, int]], expected: dict[str, int]) -> dict[str, int]:
    until_s = time.monotonic() + DEADLINE_S
    while not expected.items() <= (items := read()).items():
        assert time.monotonic() < until_s, items
        time.sleep(0.02)
    return items


def token_usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated}


def test_one_thread_runs_the_scripts_of_a_haproxy_whose_threads_damage_each_others(lab: RunningGateway) -> None:
    """With two, 2.6.12 was gone after some thousand streams of clients with keys of their own."""
    info = dict(re.findall(r"(?m)^(\w+): (.*)$", haproxy_sockets.send_command(lab.sockets, "show info")))
    older = tuple(map(int, re.findall(r"\d+", info["Version"])[:2])) < (3, 0)
    assert (info["Nbthread"] == "1") or not older, info


def test_each_key_is_one_of_its_client_and_the_gateways_own_has_no_limits(lab: RunningGateway) -> None:
    assert chat_as(lab, "alice").status == chat_as(lab, "soon").status == 200
    assert lab.chat({"model": "qwen", "messages": HI}).status == 200
    header = {"x-api-key": client_key("alice")}
    assert lab.chat({"model": "qwen", "messages": HI}, key=None, **header).status == 200
    assert error_of(lab.chat({"model": "qwen", "messages": HI}, key="nobody-key-0123456789")) == (
        401,
        "invalid_api_key",
    )
    assert error_of(lab.chat({"model": "qwen", "messages": HI}, key="alice")) == (401, "invalid_api_key")


def test_each_api_answers_a_client(lab: RunningGateway) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        body = {"model": "qwen", "messages": HI, "prompt": "hi", "input": "hi"}
        assert lab.ask("POST", path, body, key=client_key("alice")).status == 200, path


def test_a_client_uses_its_models_only(lab: RunningGateway) -> None:
    assert chat_as(lab, "bob", "org/small").json["from"] == "small"
    assert error_of(chat_as(lab, "bob")) == (403, "model_not_allowed")


def test_an_adapter_is_allowed_without_its_model_and_the_model_without_it(
    servers: dict[str, StreamServer], tmp_path: Path
) -> None:
    small = replace(build_model("small", servers["small"]), aliases=("fast", "sql", "law"), adapters=("sql", "law"))
    named = (Client("all"), Client("base", models=("fast",)), Client("one", models=("sql",)))
    with run_gateway(tmp_path, build_gateway(small, named=named)) as running_gateway:
        running_gateway.up(*small.names)
        allowed = {
            client.name: [name for name in small.names if chat_as(running_gateway, client.name, name).status == 200]
            for client in named
        }
        assert error_of(chat_as(running_gateway, "base", "sql")) == (403, "model_not_allowed")
        assert chat_as(running_gateway, "one", "sql").json["from"] == "small"
        assert servers["small"].seen[-1]["body"]["model"] == "sql"
    assert allowed == {"all": ["small", "fast", "sql", "law"], "base": ["small", "fast"], "one": ["sql"]}


def test_a_key_whose_time_is_over_is_refused_before_the_body(lab: RunningGateway) -> None:
    assert error_of(chat_as(lab, "over")) == (401, "key_expired")
    assert error_of(lab.ask("GET", "/v1/models", key=client_key("over"))) == (401, "key_expired")


def test_so_many_requests_a_minute_and_no_more_are_taken_and_counted(lab: RunningGateway) -> None:
    answers = [chat_as(lab, "few") for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert (
        answers[-1].headers["retry-after"] == "5"
        and "limit of requests per minute" in answers[-1].json["error"]["message"]
    )
    wait_for_counts(lab, "few", requests=3, refused=2, running=0)
    assert chat_as(lab, "alice").status == 200, "one client's limit is no other's"


def test_so_many_requests_at_a_time_and_no_more_are_taken(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    server = servers["one"]
    server.go_on.clear()
    first: list[Answer] = []
    running_one = threading.Thread(target=lambda: first.append(chat_as(lab, "one")))
    running_one.start()
    try:
        until_s = time.monotonic() + DEADLINE_S
        while not read_counts(lab)["one"]["running"]:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        assert error_of(chat_as(lab, "one")) == (429, "rate_limit_exceeded")
    finally:
        server.go_on.set()
        running_one.join(DEADLINE_S)
    assert first[0].status == 200
    assert chat_as(lab, "one").status == 200
    wait_for_counts(lab, "one", requests=2, running=0, refused=1, errors=0)


def test_the_log_names_the_client_and_nothing_has_a_key(lab: RunningGateway) -> None:
    chat_as(lab, "alice")
    until_s = time.monotonic() + DEADLINE_S
    while "{alice}" not in (lab.folder / "log").read_text():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    message = (lab.folder / "log").read_text() + lab.ask("GET", "/metrics").body.decode()
    files = "".join(path.read_text() for path in lab.folder.iterdir() if path.is_file())
    for secret in (KEY, *(client_key(client.name) for client in CLIENTS)):
        assert secret not in message and secret not in files


def test_without_clients_nothing_of_them_is_configured(servers: dict[str, StreamServer], tmp_path: Path) -> None:
    with run_gateway(tmp_path, build_gateway(build_model("qwen", servers["one"]))) as running_gateway:
        running_gateway.up("qwen")
        assert "clients" not in (running_gateway.folder / "haproxy.cfg").read_text()


@pytest.fixture
def counting(servers: dict[str, StreamServer], tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway with nothing counted yet."""
    named = (Client("alice", tokens_per_day=100), Client("bob"))
    with run_gateway(
        tmp_path, build_gateway(build_model("qwen", servers["one"], slots=1), named=named)
    ) as running_gateway:
        running_gateway.up("qwen")
        yield running_gateway


def test_a_client_has_so_many_tokens_a_day_and_a_reload_or_a_crash_gives_no_more(counting: RunningGateway) -> None:
    for _ in range(2):
        assert chat_as(counting, "alice", usage=token_usage(40, 10)).status == 200
    wait_for_counts(counting, "alice", requests=2)
    answer = chat_as(counting, "alice")
    assert error_of(answer) == QUOTA_SPENT and "token limit for today" in answer.json["error"]["message"]
    assert "retry-after" not in answer.headers, "an agent would wait for the rest of the day"
    assert chat_as(counting, "bob").status == 200
    wait_for_file(counting, "alice", prompt_tokens=80, generated_tokens=20, refused=1, estimated=0)
    reload_gateway(counting, (counting.folder / render.CONFIG_FILE).read_text(), "after")
    counting.up("qwen")
    assert error_of(chat_as(counting, "alice")) == QUOTA_SPENT
    with run_gateway(counting.folder.parent, counting.gateway) as second_run:
        second_run.up("qwen")
        assert error_of(chat_as(second_run, "alice")) == QUOTA_SPENT


def test_the_usage_is_read_however_a_stream_is_cut_into_pieces(counting: RunningGateway) -> None:
    last_event = 'data: {"choices":[],"usage":{"prompt_tokens": 7,"completion_tokens": 3}}\n\n'
    for piece in (1, 5, len(last_event)):
        parts = [last_event[n : n + piece] for n in range(0, len(last_event), piece)]
        assert chat_as(counting, "bob", stream=True, parts=["data: 2\n\n" * 1000, *parts]).body.endswith(b"[DONE]\n\n")
    wait_for_counts(counting, "bob", requests=3, prompt_tokens=21, generated_tokens=9, estimated=0)


def test_an_absurd_usage_is_none(counting: RunningGateway) -> None:
    for number in ("9" * 30, "-1", "null", "1e400"):
        part = f'data: {{"usage":{{"prompt_tokens":{number},"completion_tokens":{number}}}}}\n\n'
        assert chat_as(counting, "bob", stream=True, parts=[part]).status == 200
    assert wait_for_counts(counting, "bob", requests=4)["generated_tokens"] < 20
    wait_for_file(counting, "bob", requests=4)


def test_text_that_looks_like_a_usage_is_none(counting: RunningGateway) -> None:
    text = json.dumps({"choices": [{"text": '"usage": {"prompt_tokens": 1,"completion_tokens": 1}'}]})
    chat_as(
        counting,
        "bob",
        stream=True,
        parts=[f'data: {{"usage":{{"prompt_tokens":9,"completion_tokens":8}}}}\ndata: {text}\n\n'],
    )
    wait_for_counts(counting, "bob", requests=1, prompt_tokens=9, generated_tokens=8)


def test_an_answer_without_usage_and_one_that_its_client_leaves_are_estimated(
    counting: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    chat_as(counting, "bob", stream=True, parts=["data: 2\n\n"] * 8)
    assert wait_for_counts(counting, "bob", estimated=1, generated_tokens=10)["prompt_tokens"] > 0
    server = servers["one"]
    server.go_on.clear()
    while server.part_sent.acquire(blocking=False):
        pass
    try:
        link = counting.connection()
        body = json.dumps({"model": "qwen", "messages": HI, "stream": True})
        link.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {client_key('bob')}"})
        assert server.part_sent.acquire(timeout=DEADLINE_S)
        link.getresponse().fp.readline()
        link.close()
        wait_for_counts(counting, "bob", estimated=2)
    finally:
        server.go_on.set()


def test_waiting_for_a_server_is_counted_as_queue_time(
    counting: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    server = servers["one"]
    server.go_on.clear()
    threads = [threading.Thread(target=chat_as, args=(counting, "bob")) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for_counts(counting, "bob", running=2)
    queued_s = time.monotonic()
    wait_for_counts(counting, "bob", running=2)
    waited_ms = int(1000 * (time.monotonic() - queued_s))
    server.go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert wait_for_counts(counting, "bob", requests=2)["queue_ms"] >= waited_ms


def test_only_the_gateways_own_key_reads_who_used_what(counting: RunningGateway) -> None:
    chat_as(counting, "bob", usage=token_usage(1, 1))
    assert counting.ask("GET", usage.METRICS_PATH, key=client_key("alice")).status == 404
    assert wait_for_counts(counting, "bob", requests=1)


def test_a_day_s_file_is_summed_up_when_it_grows_and_holds_no_hostile_line(
    servers: dict[str, StreamServer], tmp_path: Path
) -> None:
    (tmp_path / "sockets").mkdir()
    day = tmp_path / "sockets" / f"usage.{time.strftime('%Y-%m-%d', time.gmtime())}"
    hostile = "x\n\n  \nalice 1 x\n" + "bob " + "9 " * 500 + "\neve 1 99999999999999999999\n"
    day.write_text(hostile + "alice 1 2 3 0 0 0 0\n" * 20_000)
    with run_gateway(
        tmp_path, build_gateway(build_model("qwen", servers["one"]), named=(Client("alice"),))
    ) as running_gateway:
        running_gateway.up("qwen")
        _wait_for_items(lambda: {"small": int(day.stat().st_size < 5000)}, {"small": 1})
        wait_for_file(running_gateway, "alice", prompt_tokens=40_000)
        assert chat_as(running_gateway, "alice", usage=token_usage(1, 1)).status == 200
        wait_for_file(running_gateway, "alice", prompt_tokens=40_001)


@pytest.mark.parametrize(
    "text", ["", "# table: -clients\n", "0x1: key=alice gpc0=x\n", "0x1: key=" + "a" * 400 + " gpc0=1\n"]
)
def test_a_table_that_says_nothing_is_read_as_nothing(text: str) -> None:
    (row,) = clients.client_usage(text, text, text, ["alice"])
    assert row == {"client": "alice", **dict.fromkeys((*usage.FIELDS, "running", "tokens_per_day"), 0)}
