"""`client --check` sends a request in the client's form: through its API, streamed, with a tool for an agent."""

from collections.abc import Iterator

import pytest

from sparkwright.app.queries import client_check
from sparkwright.app.queries.client_formats import FORMATS, Endpoint
from sparkwright.errors import Failed, Refused, Unreachable
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
