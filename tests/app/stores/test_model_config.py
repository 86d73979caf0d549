"""`model.inspect` as a user calls it: folders, files, and a local hub on 127.0.0.1."""

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest
from invoke.program import Program

from sparkwright.cli import namespace
from tests.engines.configs import DATA
from tests.remote.sshd import free_port

ELSEWHERE = "a search for 'mamba' and similar names would return"


@dataclass
class CommandResult:
    code: int
    out: str
    err: str


class Inspect(Protocol):
    def __call__(self, *words: str, hub: str = ..., token: str = ...) -> CommandResult: ...


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Run the command in this process, as the installed program does."""

    def run(*words: str, hub: str = "http://127.0.0.1:9", token: str = "") -> CommandResult:
        for name, value in {"HF_ENDPOINT": hub, "HF_TOKEN": token, "no_proxy": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        program = Program(name="sparkwright", binary="sparkwright", namespace=namespace)
        code = 0
        try:
            program.run(["sparkwright", "model.inspect", *words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        result = capsys.readouterr()
        return CommandResult(code, result.out, result.err)

    return run


class FakeHub(BaseHTTPRequestHandler):
    """A hub with a gated model, a renamed model, and a model that redirects to another server."""

    requests: list[tuple[str, str]]
    elsewhere: str

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers.get("Authorization", "")))
        known = {
            "/Qwen/Qwen3-Next/resolve/main/config.json": "qwen3-next-80b-a3b-instruct",
            "/Qwen/Qwen3-Next/resolve/refs%2Fpr%2F1/config.json": "qwen3-8b",
        }
        if self.path in known:
            return self.answer(200, (DATA / f"{known[self.path]}.json").read_bytes())
        if self.path.startswith("/old/name/"):
            return self.answer(307, b"", location="/Qwen/Qwen3-Next/resolve/main/config.json")
        if self.path.startswith("/sent/away/"):
            return self.answer(302, b"", location=f"{self.elsewhere}/Qwen/Qwen3-Next/resolve/main/config.json")
        codes = {"/gated/model/": 403, "/private/model/": 401, "/busy/model/": 503}
        code = next((code for path, code in codes.items() if self.path.startswith(path)), 404)
        return self.answer(code, b"no", location="")

    def answer(self, code: int, body: bytes, location: str = "") -> None:
        self.send_response(code)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def start_hub() -> tuple[ThreadingHTTPServer, type[FakeHub], str]:
    handler = type("OneHub", (FakeHub,), {"requests": [], "elsewhere": ""})
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server, handler, f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def hub() -> Iterator[tuple[type[FakeHub], str]]:
    server, handler, url = start_hub()
    yield handler, url
    server.shutdown()
    server.server_close()


def test_a_folder_is_inspected_for_a_person(inspect: Inspect, tmp_path: Path) -> None:
    shutil.copy(DATA / "qwen3.5-35b-a3b.json", tmp_path / "config.json")
    result = inspect(str(tmp_path))
    assert result.code == 0, result.err
    assert "recurrent: Gated DeltaNet in addition to full attention" in result.out
    assert "30 of 40 are recurrent" in result.out
    assert "text_config.layer_types: linear_attention in 30 of 40" in result.out
    assert "1056 tokens, 2096 with an fp8 KV cache" in result.out
    assert "0.17.0 and newer" in result.out
    assert ELSEWHERE not in result.out


@pytest.mark.parametrize(
    ("name", "rule"), [("kimi-linear-48b-a3b-instruct", "dense"), ("granite-4-8b-dense-hybrid", "recurrent")]
)
def test_where_the_rule_of_thumb_misleads_it_says_so(inspect: Inspect, name: str, rule: str) -> None:
    assert f"{ELSEWHERE} {rule}" in inspect(str(DATA / f"{name}.json")).out


def test_a_program_gets_one_object(inspect: Inspect) -> None:
    result = json.loads(inspect(str(DATA / "qwen3.5-122b-a10b-nvfp4.json"), "--json").out)
    assert (result["kind"], result["mechanism"]) == ("recurrent", "Gated DeltaNet")
    assert (result["recurrent_layers"], result["layers"]) == (36, 48)
    assert (result["name"], result["model_type"]) == ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")
    assert result["evidence"][0] == {"path": "text_config.layer_types", "seen": "linear_attention in 36 of 48"}
    assert result["substring_rule"] == "recurrent"
    assert result["block_tokens"] == {"auto": 4176, "fp8": 4176}
    assert result["vllm"] == {"since": "0.17.0", "until": None, "lacking": "0.16.0"}


def test_a_hub_id_is_fetched_with_the_token_in_a_header(inspect: Inspect, hub: tuple[type[FakeHub], str]) -> None:
    handler, url = hub
    result = inspect("Qwen/Qwen3-Next", "--json", hub=url, token="hf_secret")
    assert json.loads(result.out)["block_tokens"] == {"auto": 544, "fp8": 1072}
    files = ("config.json", "chat_template.jinja", "tokenizer_config.json", "generation_config.json")
    assert handler.requests == [(f"/Qwen/Qwen3-Next/resolve/main/{name}", "Bearer hf_secret") for name in files]
    assert "hf_secret" not in result.out + result.err


def test_a_revision_is_asked_for(inspect: Inspect, hub: tuple[type[FakeHub], str]) -> None:
    result = inspect("Qwen/Qwen3-Next", "--revision", "refs/pr/1", "--json", hub=hub[1])
    assert json.loads(result.out)["kind"] == "dense"


def test_the_token_goes_along_to_a_renamed_model_and_to_no_other_server(
    inspect: Inspect, hub: tuple[type[FakeHub], str]
) -> None:
    handler, url = hub
    inspect("old/name", hub=url, token="hf_secret")
    assert {token for _, token in handler.requests} == {"Bearer hf_secret"}
    other, away, handler.elsewhere = start_hub()
    try:
        assert inspect("sent/away", hub=url, token="hf_secret").code == 0
    finally:
        other.shutdown()
        other.server_close()
    assert away.requests[0] == ("/Qwen/Qwen3-Next/resolve/main/config.json", "")
    assert {token for _, token in away.requests} == {""}


@pytest.mark.parametrize(
    ("model", "token", "code", "sentence"),
    [
        ("gated/model", "", 5, "set HF_TOKEN"),
        ("gated/model", "hf_x", 5, "HF_TOKEN may belong to"),
        ("private/model", "", 5, "gated, private, or does not exist"),
        ("no/model", "", 5, "no config.json for no/model at 'main'"),
        ("busy/model", "", 3, "answered 503"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    inspect: Inspect, hub: tuple[type[FakeHub], str], model: str, token: str, code: int, sentence: str
) -> None:
    result = inspect(model, hub=hub[1], token=token)
    assert result.code == code
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) == 1


def test_no_hub_is_unreachable(inspect: Inspect) -> None:
    result = inspect("org/name", hub=f"http://127.0.0.1:{free_port()}", token="")
    assert result.code == 3
    assert "does not answer: Connection refused." in result.err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        ("{", "this is not JSON"),
        ("[]", "must be a JSON object"),
        ("\x00", "this is not JSON"),
    ],
)
def test_what_is_no_config_is_refused(inspect: Inspect, tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    result = inspect(str(tmp_path))
    assert result.code == 5
    assert sentence in result.err


def test_a_token_that_is_none_is_refused_and_not_repeated(inspect: Inspect) -> None:
    result = inspect("org/name", token="hf_\nsecret")
    assert result.code == 5
    assert "secret" not in result.err
