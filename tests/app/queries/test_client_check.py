"""`client --check` sends a request in the client's form: through its API, streamed, with a tool for an agent."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparkwright.app.queries import client_check
from sparkwright.app.queries.client_formats import FORMATS, Endpoint
from sparkwright.errors import Failed, Refused, Unreachable
from tests.certificate import write_self_signed
from tests.sandbox.vllm.test_api import RunningServer
from tests.sandbox.vllm.test_messages import NAMES, PARSERS, TEXT_ONLY

KEY = "sesame-sesame-sesame"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        options = {"parsers": PARSERS, "bare": (), "keyed": (*PARSERS, "--api-key", KEY)}
        started = {
            name: RunningServer(tmp_path_factory.mktemp("model"), TEXT_ONLY, *NAMES, *words)
            for name, words in options.items()
        }
        yield started
        for server in started.values():
            server.stop()


def endpoint_of(server: RunningServer, key: str = "") -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{server.port}", "m", 131_072, 8192, key, pictures=False)


@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode"])
def test_agent_calls_a_tool_through_its_own_api(servers: dict[str, RunningServer], client: str) -> None:
    result = client_check.check(FORMATS[client], endpoint_of(servers["parsers"]))
    assert result.startswith(f"{FORMATS[client].path}, streamed, in ") and "called get_weather with 'Paris'" in result


@pytest.mark.parametrize(
    ("client", "problem"),
    [("claude-code", "refused with 400: .*--enable-auto-tool-choice"), ("codex", "the tool call came as text")],
)
def test_server_without_tool_parsers_fails(servers: dict[str, RunningServer], client: str, problem: str) -> None:
    with pytest.raises(Failed, match=problem):
        client_check.check(FORMATS[client], endpoint_of(servers["bare"]))


def test_key_is_read_from_its_variable(servers: dict[str, RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    client, endpoint = FORMATS["claude-code"], endpoint_of(servers["keyed"], "SPARK_KEY")
    monkeypatch.delenv("SPARK_KEY", raising=False)
    with pytest.raises(Refused, match="SPARK_KEY is not set"):
        client_check.check(client, endpoint)
    monkeypatch.setenv("SPARK_KEY", "another-another-another")
    with pytest.raises(Failed, match="refused with 401"):
        client_check.check(client, endpoint)
    monkeypatch.setenv("SPARK_KEY", KEY)
    assert "called get_weather" in client_check.check(client, endpoint)


def test_client_without_tools_gets_streamed_text(servers: dict[str, RunningServer]) -> None:
    assert "streamed" in client_check.check(FORMATS["curl"], endpoint_of(servers["parsers"]))


def test_closed_port_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="no answer"):
        client_check.check(FORMATS["curl"], Endpoint("http://127.0.0.1:1", "m", None, None, "", pictures=False))


def test_a_certificate_that_is_not_trusted_is_trusted_as_the_advice_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        endpoint = Endpoint(f"https://127.0.0.1:{server.server_port}", "m", None, None, "", pictures=False)
        with pytest.raises(Unreachable, match="unknown issuer") as untrusted:
            client_check.check(FORMATS["curl"], endpoint)
        assert "set SSL_CERT_FILE" in untrusted.value.fix
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(Failed, match="refused with 501"):
            client_check.check(FORMATS["curl"], endpoint)
        server.shutdown()
