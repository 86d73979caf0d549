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
from tests.gateway.loopback import DEADLINE_S, KEY, Running, Server, gateway, model, running
from tests.project.test_gateway_routes import write_certificate

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
LIMIT = 2**20
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    found = {name: Server(name) for name in ("one", "two", "small")}
    yield found
    for item in found.values():
        item.shutdown()


@pytest.fixture(scope="module")
def lab(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = gateway(
        model("qwen", servers["one"], servers["two"], slots=2, key="server_key of qwen"),
        model("org/small-1.5", servers["small"]),
    )
    with running(tmp_path_factory.mktemp("gateway"), made) as found:
        found.up("qwen", "org/small-1.5")
        yield found


def test_a_request_goes_by_the_model_in_its_body(lab: Running) -> None:
    assert lab.chat({"messages": HI, "model": "org/small-1.5"}).json["from"] == "small"
    assert lab.chat({"model": "qwen", "messages": HI}).json["from"] in ("one", "two")


def test_a_server_gets_its_own_key_and_never_the_clients(lab: Running, servers: dict[str, Server]) -> None:
    lab.chat({"model": "org/small-1.5", "messages": HI})
    assert "authorization" not in servers["small"].seen[-1]["headers"]
    options = lab.chat({"model": "qwen", "messages": HI}).json["from"]
    assert servers[options].seen[-1]["headers"]["authorization"] == "Bearer server-key-server-key"


def test_each_name_of_a_model_is_listed_and_goes_to_its_servers(servers: dict[str, Server], tmp_path: Path) -> None:
    small = replace(model("small", servers["small"]), aliases=("claude-sonnet-4-5", "org/fast"))
    with running(tmp_path, gateway(small)) as found:
        found.up("small", "claude-sonnet-4-5", "org/fast")
        for name in small.names:
            assert found.chat({"model": name, "messages": HI}).json["from"] == "small"
            assert servers["small"].seen[-1]["body"]["model"] == name
        assert found.chat({"model": "fast", "messages": HI}).status == 404


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/pooling"])
def test_paths_of_the_engines_are_routed(lab: Running, path: str) -> None:
    assert lab.ask("POST", path, {"model": "qwen", "messages": HI}).json["from"] in ("one", "two")


def test_a_path_that_no_engine_of_the_group_serves_is_refused(servers: dict[str, Server], tmp_path: Path) -> None:
    with running(
        tmp_path, gateway(model("small", servers["small"]), paths=(ApiPath("/v1/chat/completions"),))
    ) as found:
        found.up("small")
        assert found.ask("POST", "/v1/messages", {"model": "small"}).json["error"]["code"] == "unknown_url"


def test_the_key_of_anthropics_api_is_taken_and_never_passed_on(lab: Running, servers: dict[str, Server]) -> None:
    body = {"model": "org/small-1.5", "messages": HI, "max_tokens": 8}
    for headers in ({"x-api-key": KEY}, {"x-api-key": KEY, "Authorization": "Bearer another"}):
        assert lab.ask("POST", "/v1/messages", body, key=None, **headers).status == 200
        assert not {"x-api-key", "authorization"} & servers["small"].seen[-1]["headers"].keys()
    for wrong in ("", KEY + "x", f"Bearer {KEY}", f"{KEY},{KEY}"):
        got = lab.ask("POST", "/v1/messages", body, key=None, **{"x-api-key": wrong})
        assert (got.status, got.json["error"]["code"]) == (401, "invalid_api_key")


def test_a_refusal_is_an_error_of_anthropics_api_too(lab: Running) -> None:
    got = lab.ask("POST", "/v1/messages", {"model": "gpt", "messages": HI})
    assert (got.status, got.json["type"], got.json["error"]["type"]) == (404, "error", "not_found_error")
    assert got.json["error"]["message"]


@pytest.mark.parametrize(
    "escaped", ['"mode\\u006c-x": 1, "model": "qwen"', '"model": "q\\u0077en"', '"model"\n :\t"qwen"']
)
def test_json_is_read_as_json(lab: Running, escaped: str) -> None:
    body = '{"messages": [{"role": "user", "content": "\\"model\\": \\"org/small-1.5\\""}], ' + escaped + "}"
    assert lab.chat(body.encode()).json["from"] in ("one", "two")


def test_a_model_named_deeper_in_the_body_is_not_the_requests(lab: Running) -> None:
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
    lab: Running, given: dict[str, Any], status: int, code: str
) -> None:
    got = lab.chat(**given)
    error = got.json["error"]
    assert (got.status, error["code"], got.headers["content-type"]) == (status, code, "application/json")
    assert error["message"] and error["type"] and error["param"] is None
    assert KEY not in got.body.decode()
    if status == 413:
        assert str(LIMIT) in error["message"]


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/sleep", "/v1/../sleep", "/v1/chat/completions/", "//v1/chat/completions", "/metrics/x", "/v1/chat%2fcompletions"],
)  # fmt: skip
def test_no_other_path_of_a_server_is_reached(lab: Running, servers: dict[str, Server], path: str) -> None:
    before = sum(len(server.seen) for server in servers.values())
    got = lab.ask("POST", path, {"model": "qwen"})
    assert (got.status, got.json["error"]["code"]) == (404, "unknown_url")
    assert sum(len(server.seen) for server in servers.values()) == before


def test_another_method_is_refused(lab: Running) -> None:
    got = lab.ask("GET", "/v1/chat/completions")
    assert (got.status, got.headers["allow"], got.json["error"]["code"]) == (405, "POST", "method_not_allowed")


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    yield from (body[at : at + size] for at in range(0, len(body), size))


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_a_body_of_chunks_is_routed_whole(lab: Running, servers: dict[str, Server], size: int) -> None:
    text = "x" * (20_000 if size < 10 else LIMIT - 100)
    body = json.dumps({"messages": [{"role": "user", "content": text}], "model": "org/small-1.5"}).encode()
    assert lab.chat(chunks(body, size), **{"Transfer-Encoding": "chunked"}).status == 200
    assert servers["small"].seen[-1]["raw"] == body


def test_a_body_as_large_as_the_limit_is_routed(lab: Running, servers: dict[str, Server]) -> None:
    rest = len(json.dumps({"messages": "", "model": "org/small-1.5"}))
    assert (
        lab.chat({"messages": "x" * (LIMIT - rest), "model": "org/small-1.5"}, **{"X-Long": "x" * 15_000}).status == 200
    )
    assert len(servers["small"].seen[-1]["raw"]) == LIMIT


def test_a_body_of_chunks_beyond_the_limit_is_refused_as_too_large(lab: Running) -> None:
    body = b'{"x": "' + b"x" * LIMIT + b'", "model": "qwen"}'
    got = lab.chat(chunks(body, 65536), **{"Transfer-Encoding": "chunked"})
    assert (got.status, got.json["error"]["code"]) == (413, "request_too_large")


def test_two_lengths_of_one_body_are_refused(lab: Running) -> None:
    """Request smuggling relies on two sides that disagree about where a request ends."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    twice = f"{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345"
    answer = lab.raw(twice.encode())
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer


def test_models_lists_what_is_up(lab: Running, servers: dict[str, Server]) -> None:
    assert lab.ask("GET", "/v1/models").json["data"][0] == {
        "id": "qwen", "object": "model", "created": 0, "owned_by": "sparkwright", "max_model_len": 4096,
    }  # fmt: skip


def test_the_metrics_are_prometheus_text_and_need_the_key(lab: Running) -> None:
    assert b'haproxy_backend_status{proxy="org::small-1.5",state="UP"} 1' in lab.ask("GET", "/metrics").body
    assert lab.ask("GET", "/metrics", key=None).status == 401
    assert lab.ask("GET", "/health", key=None).body == b"ok"


def test_a_stream_is_not_buffered(lab: Running, servers: dict[str, Server]) -> None:
    """The first part is read while the server still holds back the last."""
    server = servers["small"]
    server.go_on.clear()
    try:
        link = lab.connection()
        body = json.dumps({"model": "org/small-1.5", "stream": True})
        link.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
        got = link.getresponse()
        assert got.read1(100) == b"data: 1\n\n"
    finally:
        server.go_on.set()
    assert got.read() == b"data: [DONE]\n\n"


def test_more_requests_than_the_servers_take_wait_in_the_gateway(lab: Running, servers: dict[str, Server]) -> None:
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
    server = Server("one")
    made = gateway(model("qwen", server, slots=1), queue_s=1)
    with running(tmp_path, made) as lab:
        lab.up("qwen")
        server.go_on.clear()
        thread = threading.Thread(target=lambda: lab.chat({"model": "qwen"}))
        thread.start()
        assert server.part_sent.acquire(timeout=10)
        got = lab.chat({"model": "qwen"})
        server.go_on.set()
        thread.join()
    server.shutdown()
    assert (got.status, got.headers["retry-after"], got.json["error"]["code"]) == (503, "5", "overloaded")


def test_a_server_that_generates_nothing_is_left_out_and_back_by_itself(tmp_path: Path) -> None:
    server = Server("one")
    with running(tmp_path, gateway(model("qwen", server))) as lab:
        lab.up("qwen")
        server.healthy = False
        lab.up()
        got = lab.chat({"model": "qwen"})
        assert (got.status, got.headers["retry-after"], got.json["error"]["code"]) == (503, "5", "model_not_up")
        server.healthy = True
        lab.up("qwen")
    server.shutdown()


def test_a_server_of_vectors_is_up_by_the_vector_that_it_gives(tmp_path: Path) -> None:
    value, two = Server("one"), Server("two")
    with running(tmp_path, gateway(model("text", value), model("vectors", two, task="embed"))) as lab:
        lab.up("text", "vectors")
        two.healthy = False
        lab.up("text")
    value.shutdown()
    two.shutdown()


def test_the_same_first_messages_go_to_the_same_server(tmp_path: Path) -> None:
    servers = [Server(f"s{n}") for n in range(3)]
    with running(tmp_path, gateway(model("qwen", *servers), affinity="prefix")) as lab:
        lab.up("qwen")

        def asked(path: str, body: dict[str, Any]) -> str:
            lab.idle()
            return str(lab.ask("POST", path, {**body, "model": "qwen"}).json["from"])

        seen = set()
        for user in range(12):
            first: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
            question = f"question {user}"
            first.append({"role": "user", "content": question if user % 2 else [{"type": "text", "text": question}]})
            turns = [first, [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]]
            same = {asked("/v1/chat/completions", {"messages": turn}) for turn in turns}
            assert len(same) == 1
            seen |= same
        assert len(seen) > 1
        assert len({asked("/v1/completions", {"prompt": "x" * 2000 + str(n)}) for n in range(5)}) == 1
    for server in servers:
        server.shutdown()


def test_one_conversation_does_not_fill_one_server_while_others_are_idle(tmp_path: Path) -> None:
    """By prefix all of these requests belong to one server; it takes three quarters of them."""
    servers = [Server(f"s{n}") for n in range(3)]
    for server in servers:
        server.go_on.clear()
    with running(tmp_path, gateway(model("qwen", *servers, slots=16), affinity="prefix")) as lab:
        lab.up("qwen")
        threads = [threading.Thread(target=lab.chat, args=({"model": "qwen", "messages": HI},)) for _ in range(12)]
        for n, thread in enumerate(threads):
            thread.start()
            until_s = time.monotonic() + DEADLINE_S
            while sum(server.running for server in servers) <= n:
                assert time.monotonic() < until_s
                time.sleep(0.005)
        most = sorted(server.running for server in servers)
        for server in servers:
            server.go_on.set()
        for thread in threads:
            thread.join()
    for server in servers:
        server.shutdown()
    assert most[-1] <= 10 and most[-1] >= 6, most


def test_with_a_certificate_it_is_asked_by_https_only(tmp_path: Path) -> None:
    server = Server("one")
    write_certificate(tmp_path, "lab")
    pem = (tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text()
    made = gateway(model("qwen", server), tls=True)
    with running(tmp_path, made, pem) as lab:
        body = {"model": "qwen", "messages": HI}
        for door in (Endpoint(made.port, tls=True), Endpoint(made.port, True, lab.sockets)):
            found = haproxy_sockets.send_request(door, "/v1/chat/completions", body, key=KEY, timeout_s=20)
            assert (found.status, found.data["from"]) == (200, "one")
        assert haproxy_sockets.send_request(
            Endpoint(made.port), "/v1/chat/completions", body, key=KEY, timeout_s=20
        ).status in (
            0,
            400,
        )
    server.shutdown()
