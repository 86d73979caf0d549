"""The rendered configuration in a real HAProxy: routing and refusals."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.api_paths import ApiPath
from sparkwright.gateway import statistics
from sparkwright.host.gateway import haproxy_sockets
from sparkwright.host.gateway.haproxy_sockets import Endpoint
from tests.gateway.loopback import KEY, RunningGateway, build_gateway, build_model, run_gateway, serve_models
from tests.gateway.servers import CHAT, StreamServer, needs_haproxy
from tests.project.test_gateway_routes import write_certificate
from tests.waiting import wait_until

pytestmark = needs_haproxy
LIMIT = 2**20
HI = [{"role": "user", "content": "hi"}]
QWEN = {"model": "qwen", "messages": HI}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, StreamServer]]:
    with StreamServer("one") as one, StreamServer("two") as two, StreamServer("small") as small:
        yield {"one": one, "two": two, "small": small}


@pytest.fixture
def three_servers() -> Iterator[list[StreamServer]]:
    with StreamServer("s0") as first, StreamServer("s1") as second, StreamServer("s2") as third:
        yield [first, second, third]


@pytest.fixture(scope="module")
def lab(servers: dict[str, StreamServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    qwen = build_model("qwen", servers["one"], servers["two"], slots=2, key="server_key of qwen")
    small = build_model("org/small-1.5", servers["small"])
    with serve_models(tmp_path_factory.mktemp("gateway"), qwen, small) as lab:
        yield lab


def test_the_model_in_the_body_selects_the_server(lab: RunningGateway) -> None:
    assert lab.chat({"messages": HI, "model": "org/small-1.5"}).json["from"] == "small"
    assert lab.chat(QWEN).json["from"] in ("one", "two")


def test_a_server_gets_its_own_key_and_never_the_key_of_a_client(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    lab.chat({"model": "org/small-1.5", "messages": HI})
    assert "authorization" not in servers["small"].seen[-1]["headers"]
    name = lab.chat(QWEN).json["from"]
    assert servers[name].seen[-1]["headers"]["authorization"] == "Bearer server-key-server-key"


def test_each_alias_of_a_model_is_listed_and_routed_to_its_servers(server: StreamServer, tmp_path: Path) -> None:
    small = replace(build_model("small", server), aliases=("claude-sonnet-4-5", "org/fast"))
    with serve_models(tmp_path, small) as lab:
        for name in small.names:
            assert lab.chat({"model": name, "messages": HI}).json["from"] == "one"
            assert server.seen[-1]["body"]["model"] == name
        assert lab.chat({"model": "fast", "messages": HI}).status == 404


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/pooling"])
def test_paths_of_the_engines_are_routed(lab: RunningGateway, path: str) -> None:
    assert lab.ask("POST", path, QWEN).json["from"] in ("one", "two")


def test_a_path_that_no_engine_of_the_group_serves_is_refused(server: StreamServer, tmp_path: Path) -> None:
    with serve_models(tmp_path, build_model("small", server), paths=(ApiPath(CHAT),)) as lab:
        assert lab.ask("POST", "/v1/messages", {"model": "small"}).error == (404, "unknown_url")


def test_the_key_header_of_anthropics_api_is_accepted_and_never_passed_on(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    body = {"model": "org/small-1.5", "messages": HI, "max_tokens": 8}
    for headers in ({"x-api-key": KEY}, {"x-api-key": KEY, "Authorization": "Bearer another"}):
        assert lab.ask("POST", "/v1/messages", body, key=None, headers=headers).status == 200
        assert not {"x-api-key", "authorization"} & servers["small"].seen[-1]["headers"].keys()
    for wrong in ("", KEY + "x", f"Bearer {KEY}", f"{KEY},{KEY}"):
        answer = lab.ask("POST", "/v1/messages", body, key=None, headers={"x-api-key": wrong})
        assert answer.error == (401, "invalid_api_key")


def test_a_refusal_has_the_error_format_of_anthropics_api(lab: RunningGateway) -> None:
    answer = lab.ask("POST", "/v1/messages", {"model": "gpt", "messages": HI})
    assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (404, "error", "not_found_error")
    assert answer.json["error"]["message"]


@pytest.mark.parametrize(
    "escaped", ['"mode\\u006c-x": 1, "model": "qwen"', '"model": "q\\u0077en"', '"model"\n :\t"qwen"']
)
def test_escapes_and_whitespace_in_json_are_parsed(lab: RunningGateway, escaped: str) -> None:
    body = '{"messages": [{"role": "user", "content": "\\"model\\": \\"org/small-1.5\\""}], ' + escaped + "}"
    assert lab.chat(body.encode()).json["from"] in ("one", "two")


def test_a_model_in_a_nested_object_does_not_select_the_server(lab: RunningGateway) -> None:
    body = {"metadata": {"model": "org/small-1.5"}, "tools": [{"model": "org/small-1.5"}], "model": "qwen"}
    assert lab.chat(body).json["from"] in ("one", "two")


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("no key", {"body": {"model": "qwen"}, "key": None}, 401, "invalid_api_key"),
    ("wrong key", {"body": {"model": "qwen"}, "key": KEY + "x"}, 401, "invalid_api_key"),
    (
        "empty key",
        {"body": {"model": "qwen"}, "key": None, "headers": {"Authorization": "Bearer "}},
        401,
        "invalid_api_key",
    ),
    (
        "basic authentication",
        {"body": {"model": "qwen"}, "key": None, "headers": {"Authorization": "Basic YTpi"}},
        401,
        "invalid_api_key",
    ),
    ("unknown model", {"body": {"model": "gpt"}}, 404, "model_not_found"),
    ("empty name", {"body": {"model": ""}}, 404, "model_not_found"),
    ("name of a backend", {"body": {"model": "org::small-1.5"}}, 404, "model_not_found"),
    ("name with a line break", {"body": {"model": "qwen\n"}}, 404, "model_not_found"),
    ("long name", {"body": {"model": "q" * 100_000}}, 404, "model_not_found"),
    ("number as model", {"body": {"model": 5}}, 404, "model_not_found"),
    ("list as model", {"body": {"model": ["qwen"]}}, 400, "model_missing"),
    ("no model", {"body": {"messages": HI}}, 400, "model_missing"),
    ("form instead of JSON", {"body": b"model=qwen"}, 400, "model_missing"),
    ("empty body", {"body": b""}, 400, "model_missing"),
    ("truncated JSON", {"body": b'{"model": "qw'}, 400, "model_missing"),
    ("null bytes", {"body": b'\0{"model": "qwen"}'}, 400, "model_missing"),
    (
        "deep nesting before the model",
        {"body": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b', "model": "qwen"}'},
        400,
        "model_missing",
    ),
    ("compressed", {"body": b"\x1f\x8b\x08\x00", "headers": {"Content-Encoding": "gzip"}}, 400, "model_missing"),
    ("large body", {"body": b'{"model": "qwen", "x": "' + b"x" * LIMIT + b'"}'}, 413, "request_too_large"),
    ("very large body", {"body": b'{"model": "qwen", "x": "' + b"x" * 8 * LIMIT + b'"}'}, 413, "request_too_large"),
    ("large headers", {"body": {"model": "qwen"}, "headers": {"X-Long": "x" * 20_000}}, 431, "headers_too_large"),
]


@pytest.mark.parametrize(("request_", "status", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_refusal_has_the_error_format_of_openai(
    lab: RunningGateway, request_: dict[str, Any], status: int, code: str
) -> None:
    answer = lab.chat(**request_)
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
def test_other_paths_of_a_server_are_unreachable(
    lab: RunningGateway, servers: dict[str, StreamServer], path: str
) -> None:
    before = sum(len(server.seen) for server in servers.values())
    assert lab.ask("POST", path, {"model": "qwen"}).error == (404, "unknown_url")
    assert sum(len(server.seen) for server in servers.values()) == before


def test_a_wrong_method_is_refused(lab: RunningGateway) -> None:
    answer = lab.ask("GET", CHAT)
    assert (*answer.error, answer.headers["allow"]) == (405, "method_not_allowed", "POST")


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_the_list_of_models_can_only_be_read(lab: RunningGateway, method: str) -> None:
    answer = lab.ask(method, "/v1/models")
    assert (*answer.error, answer.headers["allow"]) == (405, "method_not_allowed", "GET,HEAD")
    head = lab.ask("HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")


def split_body(body: bytes, size: int) -> Iterator[bytes]:
    yield from (body[at : at + size] for at in range(0, len(body), size))


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_a_chunked_body_is_routed_whole(lab: RunningGateway, servers: dict[str, StreamServer], size: int) -> None:
    text = "x" * (20_000 if size < 10 else LIMIT - 100)
    body = json.dumps({"messages": [{"role": "user", "content": text}], "model": "org/small-1.5"}).encode()
    assert lab.chat(split_body(body, size), headers={"Transfer-Encoding": "chunked"}).status == 200
    assert servers["small"].seen[-1]["raw"] == body


def test_a_body_as_large_as_the_limit_is_routed(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    rest = len(json.dumps({"messages": "", "model": "org/small-1.5"}))
    body = {"messages": "x" * (LIMIT - rest), "model": "org/small-1.5"}
    assert lab.chat(body, headers={"X-Long": "x" * 15_000}).status == 200
    assert len(servers["small"].seen[-1]["raw"]) == LIMIT


def test_a_chunked_body_beyond_the_limit_is_refused(lab: RunningGateway) -> None:
    body = b'{"x": "' + b"x" * LIMIT + b'", "model": "qwen"}'
    answer = lab.chat(split_body(body, 65536), headers={"Transfer-Encoding": "chunked"})
    assert answer.error == (413, "request_too_large")


def test_two_content_lengths_are_refused(lab: RunningGateway) -> None:
    """Request smuggling relies on two sides that disagree about where a request ends."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    twice = f"{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345"
    answer = lab.raw(twice.encode())
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer


def test_a_listed_model_has_the_fields_of_openai(lab: RunningGateway) -> None:
    assert lab.ask("GET", "/v1/models").json["data"][0] == {
        "id": "qwen", "object": "model", "created": 0, "owned_by": "sparkwright", "max_model_len": 4096,
    }  # fmt: skip


def test_metrics_need_the_key_and_health_needs_none(lab: RunningGateway) -> None:
    assert b'haproxy_backend_status{proxy="org::small-1.5",state="UP"} 1' in lab.ask("GET", "/metrics").body
    assert lab.ask("GET", "/metrics", key=None).status == 401
    assert lab.ask("GET", "/health", key=None).body == b"ok"


def test_a_stream_is_not_buffered(lab: RunningGateway, servers: dict[str, StreamServer]) -> None:
    """The first part is read while the server still holds back the last."""
    server = servers["small"]
    server.go_on.clear()
    try:
        response = lab.begin_stream(model="org/small-1.5")
        assert response.read1(100) == b"data: 1\n\n"
    finally:
        server.go_on.set()
    assert response.read() == b"data: [DONE]\n\n"


def has_running_requests(servers: list[StreamServer], count: int) -> bool:
    return sum(server.running for server in servers) == count


def test_requests_beyond_the_slots_of_the_servers_wait_in_the_gateway(
    lab: RunningGateway, servers: dict[str, StreamServer]
) -> None:
    """Ten requests, two servers with two slots each: none is refused, and no server ever has more than two."""
    pair = [servers["one"], servers["two"]]
    for server in pair:
        server.most = 0
        server.go_on.clear()
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(lab.chat, QWEN) for _ in range(10)]
        try:
            wait_until(partial(has_running_requests, pair, 4))
        finally:
            for server in pair:
                server.go_on.set()
        assert [answer.result().status for answer in answers] == [200] * 10
    assert [server.most for server in pair] == [2, 2]


def test_a_request_that_waits_too_long_gets_503_with_retry_after(tmp_path: Path, server: StreamServer) -> None:
    model = build_model("qwen", server, slots=1)
    with serve_models(tmp_path, model, queue_s=1) as lab, ThreadPoolExecutor(1) as pool:
        server.go_on.clear()
        pool.submit(lab.chat, {"model": "qwen"})
        assert server.part_sent.acquire(timeout=10)
        answer = lab.chat({"model": "qwen"})
        server.go_on.set()
    assert (*answer.error, answer.headers["retry-after"]) == (503, "overloaded", "5")


def test_a_server_that_generates_nothing_is_down_until_it_generates_again(tmp_path: Path, server: StreamServer) -> None:
    with serve_models(tmp_path, build_model("qwen", server)) as lab:
        server.healthy = False
        lab.up()
        answer = lab.chat({"model": "qwen"})
        assert (*answer.error, answer.headers["retry-after"]) == (503, "model_not_up", "5")
        server.healthy = True
        lab.up("qwen")


def test_an_embedding_server_is_up_if_it_returns_a_vector(
    tmp_path: Path, server: StreamServer, other: StreamServer
) -> None:
    models = build_model("text", server), build_model("vectors", other, task="embed")
    with serve_models(tmp_path, *models) as lab:
        other.healthy = False
        lab.up("text")


def test_requests_with_the_same_prefix_go_to_the_same_server(tmp_path: Path, three_servers: list[StreamServer]) -> None:
    with serve_models(tmp_path, build_model("qwen", *three_servers), affinity="prefix") as lab:

        def find_server(path: str, body: dict[str, Any]) -> str:
            lab.idle()
            return str(lab.ask("POST", path, {**body, "model": "qwen"}).json["from"])

        servers = set()
        for user in range(12):
            first: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
            question = f"question {user}"
            first.append({"role": "user", "content": question if user % 2 else [{"type": "text", "text": question}]})
            turns = [first, [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]]
            same = {find_server(CHAT, {"messages": turn}) for turn in turns}
            assert len(same) == 1
            servers |= same
        assert len(servers) > 1
        assert len({find_server("/v1/completions", {"prompt": "x" * 2000 + str(n)}) for n in range(5)}) == 1


def test_one_conversation_does_not_fill_one_server_while_others_are_idle(
    tmp_path: Path, three_servers: list[StreamServer]
) -> None:
    """By prefix all of these requests belong to one server; it takes three quarters of them."""
    for server in three_servers:
        server.go_on.clear()
    model = build_model("qwen", *three_servers, slots=16)
    with serve_models(tmp_path, model, affinity="prefix") as lab, ThreadPoolExecutor(12) as pool:
        try:
            for count in range(1, 13):
                pool.submit(lab.chat, QWEN)
                wait_until(partial(has_running_requests, three_servers, count))
            running_counts = sorted(server.running for server in three_servers)
        finally:
            for server in three_servers:
                server.go_on.set()
    assert 6 <= running_counts[-1] <= 10, running_counts


def test_a_gateway_with_a_certificate_answers_https_only(tmp_path: Path, server: StreamServer) -> None:
    write_certificate(tmp_path, "lab")
    pem = (tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text()
    rendered = build_gateway(build_model("qwen", server), tls=True)
    with run_gateway(tmp_path, rendered, pem) as lab:
        body = QWEN
        for door in (Endpoint(rendered.port, tls=True), Endpoint(rendered.port, True, lab.sockets)):
            answer = haproxy_sockets.send_request(door, CHAT, body, key=KEY, timeout_s=20)
            assert (answer.status, answer.data["from"]) == (200, "one")
        plain = haproxy_sockets.send_request(Endpoint(rendered.port), CHAT, body, key=KEY, timeout_s=20)
        assert plain.status in (0, 400)


def read_model_statistics(lab: RunningGateway) -> dict[str, Any]:
    return statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))[0]


def test_a_request_waits_for_its_server_and_counts_as_queued(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with (
        run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True)) as lab,
        ThreadPoolExecutor(1) as pool,
    ):
        lab.up()
        answer = pool.submit(lab.chat, QWEN)
        wait_until(lambda: read_model_statistics(lab)["queued"] == 1)
        assert [item["host"] for item in read_model_statistics(lab)["servers"]] == ["one"]
        server.healthy = True
        assert answer.result().json["from"] == "one"
        lab.up("qwen")


def test_a_request_whose_server_stays_down_gets_503_with_retry_after(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True, queue_s=1)) as lab:
        lab.up()
        answer = lab.chat(QWEN)
    assert (*answer.error, answer.headers["retry-after"]) == (503, "overloaded", "5")
    assert not server.seen
