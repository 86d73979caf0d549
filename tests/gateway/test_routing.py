"""The rendered configuration in Debian's real HAProxy: the routing, and each refusal."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.api_paths import ApiPath
from sparkwright.host.gateway import haproxy_sockets
from sparkwright.host.gateway.haproxy_sockets import Endpoint
from tests.gateway.loopback import (
    DEADLINE_S,
    KEY,
    RunningGateway,
    StreamServer,
    build_gateway,
    build_model,
    run_gateway,
)
from tests.project.test_gateway_routes import write_certificate

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
LIMIT = 2**20
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, StreamServer]]:
    server = {name: StreamServer(name) for name in ("one", "two", "small")}
    yield server
    for item in server.values():
        item.shutdown()


@pytest.fixture(scope="module")
def lab(servers: dict[str, StreamServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    rendered = build_gateway(
        build_model("qwen", servers["one"], servers["two"], slots=2, key="server_key of qwen"),
        build_model("org/small-1.5", servers["small"]),
    )
    with run_gateway(tmp_path_factory.mktemp("gateway"), rendered) as running_gateway:
        running_gateway.up("qwen", "org/small-1.5")
        yield running_gateway


def test_a_request_goes_by_the_model_in_its_body(lab: RunningGateway) -> None:
    assert lab.chat({"messages": HI, "model": "org/small-1.5"}).json["from"] == "small"
    assert lab.chat({"model": "qwen", "messages": HI}).json["from"] in ("one", "two")


def test_a_server_gets_its_own_key_and_never_the_clients(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    lab.chat({"model": "org/small-1.5", "messages": HI})
    assert "authorization" not in servers["small"].seen[-1]["headers"]
    options = lab.chat({"model": "qwen", "messages": HI}).json["from"]
    assert servers[options].seen[-1]["headers"]["authorization"] == "Bearer server-key-server-key"


def test_each_name_of_a_model_is_listed_and_goes_to_its_servers(
    servers: dict[str, StreamServer], tmp_path: Path
) -> None:
    small = replace(build_model("small", servers["small"]), aliases=("claude-sonnet-4-5", "org/fast"))
    with run_gateway(tmp_path, build_gateway(small)) as running_gateway:
        running_gateway.up("small", "claude-sonnet-4-5", "org/fast")
        for name in small.names:
            assert running_gateway.chat({"model": name, "messages": HI}).json["from"] == "small"
            assert servers["small"].seen[-1]["body"]["model"] == name
        assert running_gateway.chat({"model": "fast", "messages": HI}).status == 404


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/pooling"])
def test_paths_of_the_engines_are_routed(lab: RunningGateway, path: str) -> None:
    assert lab.ask("POST", path, {"model": "qwen", "messages": HI}).json["from"] in ("one", "two")


def test_a_path_that_no_engine_of_the_group_serves_is_refused(servers: dict[str, StreamServer], tmp_path: Path) -> None:
    with run_gateway(
        tmp_path, build_gateway(build_model("small", servers["small"]), paths=(ApiPath("/v1/chat/completions"),))
    ) as found:
        found.up("small")
        assert found.ask("POST", "/v1/messages", {"model": "small"}).json["error"]["code"] == "unknown_url"


def test_the_key_of_anthropics_api_is_taken_and_never_passed_on(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    body = {"model": "org/small-1.5", "messages": HI, "max_tokens": 8}
    for headers in ({"x-api-key": KEY}, {"x-api-key": KEY, "Authorization": "Bearer another"}):
        assert lab.ask("POST", "/v1/messages", body, key=None, **headers).status == 200
        assert not {"x-api-key", "authorization"} & servers["small"].seen[-1]["headers"].keys()
    for wrong in ("", KEY + "x", f"Bearer {KEY}", f"{KEY},{KEY}"):
        answer = lab.ask("POST", "/v1/messages", body, key=None, **{"x-api-key": wrong})
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")


def test_a_refusal_is_an_error_of_anthropics_api_too(lab: RunningGateway) -> None:
    answer = lab.ask("POST", "/v1/messages", {"model": "gpt", "messages": HI})
    assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (404, "error", "not_found_error")
    assert answer.json["error"]["message"]


@pytest.mark.parametrize(
    "escaped", ['"mode\\u006c-x": 1, "model": "qwen"', '"model": "q\\u0077en"', '"model"\n :\t"qwen"']
)
def test_json_is_read_as_json(lab: RunningGateway, escaped: str) -> None:
    body = '{"messages": [{"role": "user", "content": "\\"model\\": \\"org/small-1.5\\""}], ' + escaped + "}"
    assert lab.chat(body.encode()).json["from"] in ("one", "two")


def test_a_model_named_deeper_in_the_body_is_not_the_requests(lab: RunningGateway) -> None:
    body = {"metadata": {"model": "org/small-1.5"}, "tools": [{"model": "org/small-1.5"}], "model": "qwen"}
    assert lab.chat(body).json["from"] in ("one", "two")


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("no key", {"body": {"model": "qwen"}, "key": None}, 401, "invalid_api_key"),
    ("another key", {"body": {"model": "qwen"}, "key": KEY + "x"}, 401, "invalid_api_key"),
    ("an empty key", {"body": {"model": "qwen"}, "key": None, "Authorization": "Bearer "}, 401, "invalid_api_key"),
    ("its hash", {"body": {"model": "qwen"}, "key": None, "Authorization": "Basic YTpi"}, 401, "invalid_api_key"),
    ("unknown model", {"body": {"model": "gpt"}}, 404, "model_not_found"),
    ("empty name", {"body": {"model": ""}}, 404, "model_not_found"),
    ("a backend's name", {"body": {"model": "org::small-1.5"}}, 404, "model_not_found"),
    ("a name with more", {"body": {"model": "qwen\n"}}, 404, "model_not_found"),
    ("a long name", {"body": {"model": "q" * 100_000}}, 404, "model_not_found"),
    ("a number", {"body": {"model": 5}}, 404, "model_not_found"),
    ("a list", {"body": {"model": ["qwen"]}}, 400, "model_missing"),
    ("no model", {"body": {"messages": HI}}, 400, "model_missing"),
    ("no JSON", {"body": b"model=qwen"}, 400, "model_missing"),
    ("nothing", {"body": b""}, 400, "model_missing"),
    ("half of it", {"body": b'{"model": "qw'}, 400, "model_missing"),
    ("null bytes", {"body": b'\0{"model": "qwen"}'}, 400, "model_missing"),
    ("deep before it", {"body": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b', "model": "qwen"}'}, 400, "model_missing"),
    ("compressed", {"body": b"\x1f\x8b\x08\x00", "Content-Encoding": "gzip"}, 400, "model_missing"),
    ("large", {"body": b'{"model": "qwen", "x": "' + b"x" * LIMIT + b'"}'}, 413, "request_too_large"),
    ("larger", {"body": b'{"model": "qwen", "x": "' + b"x" * 8 * LIMIT + b'"}'}, 413, "request_too_large"),
    ("large headers", {"body": {"model": "qwen"}, "X-Long": "x" * 20_000}, 431, "headers_too_large"),
]


@pytest.mark.parametrize(("given", "status", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_each_refusal_is_an_error_as_openai_shapes_it(
    lab: RunningGateway, given: dict[str, Any], status: int, code: str
) -> None:
    answer = lab.chat(**given)
    error = answer.json["error"]
    assert (answer.status, error["code"], answer.headers["content-type"]) == (status, code, "application/json")
    assert error["message"] and error["type"] and error["param"] is None
    assert KEY not in answer.body.decode()
    if status == 413:
        assert str(LIMIT) in error["message"]


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/sleep", "/v1/../sleep", "/v1/chat/completions/", "//v1/chat/completions", "/metrics/x", "/v1/chat%2fcompletions"],
)  # fmt: skip
def test_no_other_path_of_a_server_is_reached(lab: RunningGateway, servers: dict[str, StreamServer], path: str) -> None:
    before = sum(len(server.seen) for server in servers.values())
    answer = lab.ask("POST", path, {"model": "qwen"})
    assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_url")
    assert sum(len(server.seen) for server in servers.values()) == before


def test_another_method_is_refused(lab: RunningGateway) -> None:
    answer = lab.ask("GET", "/v1/chat/completions")
    assert (answer.status, answer.headers["allow"], answer.json["error"]["code"]) == (405, "POST", "method_not_allowed")


def split_body(body: bytes, size: int) -> Iterator[bytes]:
    yield from (body[at : at + size] for at in range(0, len(body), size))


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_a_body_of_chunks_is_routed_whole(lab: RunningGateway, servers: dict[str, StreamServer], size: int) -> None:
    text = "x" * (20_000 if size < 10 else LIMIT - 100)
    body = json.dumps({"messages": [{"role": "user", "content": text}], "model": "org/small-1.5"}).encode()
    assert lab.chat(split_body(body, size), **{"Transfer-Encoding": "chunked"}).status == 200
    assert servers["small"].seen[-1]["raw"] == body


def test_a_body_as_large_as_the_limit_is_routed(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    rest = len(json.dumps({"messages": "", "model": "org/small-1.5"}))
    assert (
        lab.chat({"messages": "x" * (LIMIT - rest), "model": "org/small-1.5"}, **{"X-Long": "x" * 15_000}).status == 200
    )
    assert len(servers["small"].seen[-1]["raw"]) == LIMIT


def test_a_body_of_chunks_beyond_the_limit_is_refused_as_too_large(lab: RunningGateway) -> None:
    body = b'{"x": "' + b"x" * LIMIT + b'", "model": "qwen"}'
    answer = lab.chat(split_body(body, 65536), **{"Transfer-Encoding": "chunked"})
    assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")


def test_two_lengths_of_one_body_are_refused(lab: RunningGateway) -> None:
    """Request smuggling relies on two sides that disagree about where a request ends."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    twice = f"{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345"
    answer = lab.raw(twice.encode())
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer


def test_models_lists_what_is_up(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    assert lab.ask("GET", "/v1/models").json["data"][0] == {
        "id": "qwen", "object": "model", "created": 0, "owned_by": "sparkwright", "max_model_len": 4096,
    }  # fmt: skip


def test_the_metrics_are_prometheus_text_and_need_the_key(lab: RunningGateway) -> None:
    assert b'haproxy_backend_status{proxy="org::small-1.5",state="UP"} 1' in lab.ask("GET", "/metrics").body
    assert lab.ask("GET", "/metrics", key=None).status == 401
    assert lab.ask("GET", "/health", key=None).body == b"ok"


def test_a_stream_is_not_buffered(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    """The first part is read while the server still holds back the last."""
    server = servers["small"]
    server.go_on.clear()
    try:
        link = lab.connection()
        body = json.dumps({"model": "org/small-1.5", "stream": True})
        link.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
        response = link.getresponse()
        assert response.read1(100) == b"data: 1\n\n"
    finally:
        server.go_on.set()
    assert response.read() == b"data: [DONE]\n\n"


def test_more_requests_than_the_servers_take_wait_in_the_gateway(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    """Ten requests, two servers with two slots each: none is refused, and no server ever has more than two."""
    ours = [servers["one"], servers["two"]]
    for our in ours:
        our.most = 0
        our.go_on.clear()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(lab.chat({"model": "qwen", "messages": HI}).status))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + 10
    while sum(our.running for our in ours) < 4 and time.monotonic() < until_s:
        time.sleep(0.01)
    for our in ours:
        our.go_on.set()
    for thread in threads:
        thread.join()
    assert answers == [200] * 10
    assert [our.most for our in ours] == [2, 2]


def test_a_request_that_waits_too_long_gets_503_and_when_to_come_back(tmp_path: Path) -> None:
    server = StreamServer("one")
    rendered = build_gateway(build_model("qwen", server, slots=1), queue_s=1)
    with run_gateway(tmp_path, rendered) as lab:
        lab.up("qwen")
        server.go_on.clear()
        thread = threading.Thread(target=lambda: lab.chat({"model": "qwen"}))
        thread.start()
        assert server.part_sent.acquire(timeout=10)
        answer = lab.chat({"model": "qwen"})
        server.go_on.set()
        thread.join()
    server.shutdown()
    assert (answer.status, answer.headers["retry-after"], answer.json["error"]["code"]) == (503, "5", "overloaded")


def test_a_server_that_generates_nothing_is_left_out_and_back_by_itself(tmp_path: Path) -> None:
    server = StreamServer("one")
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server))) as lab:
        lab.up("qwen")
        server.healthy = False
        lab.up()
        answer = lab.chat({"model": "qwen"})
        assert (answer.status, answer.headers["retry-after"], answer.json["error"]["code"]) == (
            503,
            "5",
            "model_not_up",
        )
        server.healthy = True
        lab.up("qwen")
    server.shutdown()


def test_a_server_of_vectors_is_up_by_the_vector_that_it_gives(tmp_path: Path) -> None:
    value, other = StreamServer("one"), StreamServer("two")
    with run_gateway(
        tmp_path, build_gateway(build_model("text", value), build_model("vectors", other, task="embed"))
    ) as lab:
        lab.up("text", "vectors")
        other.healthy = False
        lab.up("text")
    value.shutdown()
    other.shutdown()


def test_the_same_first_messages_go_to_the_same_server(tmp_path: Path) -> None:
    servers = [StreamServer(f"s{n}") for n in range(3)]
    with run_gateway(tmp_path, build_gateway(build_model("qwen", *servers), affinity="prefix")) as lab:
        lab.up("qwen")

        def serving_server(path: str, body: dict[str, Any]) -> str:
            lab.idle()
            return str(lab.ask("POST", path, {**body, "model": "qwen"}).json["from"])

        seen = set()
        for user in range(12):
            first: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
            question = f"question {user}"
            first.append({"role": "user", "content": question if user % 2 else [{"type": "text", "text": question}]})
            turns = [first, [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]]
            same = {serving_server("/v1/chat/completions", {"messages": turn}) for turn in turns}
            assert len(same) == 1
            seen |= same
        assert len(seen) > 1
        assert len({serving_server("/v1/completions", {"prompt": "x" * 2000 + str(n)}) for n in range(5)}) == 1
    for server in servers:
        server.shutdown()


def test_one_conversation_does_not_fill_one_server_while_others_are_idle(tmp_path: Path) -> None:
    """By prefix all of these requests belong to one server; it takes three quarters of them."""
    servers = [StreamServer(f"s{n}") for n in range(3)]
    for server in servers:
        server.go_on.clear()
    with run_gateway(tmp_path, build_gateway(build_model("qwen", *servers, slots=16), affinity="prefix")) as lab:
        lab.up("qwen")
        threads = [threading.Thread(target=lab.chat, args=({"model": "qwen", "messages": HI},)) for _ in range(12)]
        for n, thread in enumerate(threads):
            thread.start()
            until_s = time.monotonic() + DEADLINE_S
            while sum(server.running for server in servers) <= n:
                assert time.monotonic() < until_s
                time.sleep(0.005)
        running_counts = sorted(server.running for server in servers)
        for server in servers:
            server.go_on.set()
        for thread in threads:
            thread.join()
    for server in servers:
        server.shutdown()
    assert running_counts[-1] <= 10 and running_counts[-1] >= 6, running_counts


def test_with_a_certificate_it_is_asked_by_https_only(tmp_path: Path) -> None:
    server = StreamServer("one")
    write_certificate(tmp_path, "lab")
    pem = (tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text()
    rendered = build_gateway(build_model("qwen", server), tls=True)
    with run_gateway(tmp_path, rendered, pem) as lab:
        body = {"model": "qwen", "messages": HI}
        for door in (Endpoint(rendered.port, tls=True), Endpoint(rendered.port, True, lab.sockets)):
            answer = haproxy_sockets.send_request(door, "/v1/chat/completions", body, key=KEY, timeout_s=20)
            assert (answer.status, answer.data["from"]) == (200, "one")
        assert haproxy_sockets.send_request(
            Endpoint(rendered.port), "/v1/chat/completions", body, key=KEY, timeout_s=20
        ).status in (
            0,
            400,
        )
    server.shutdown()
