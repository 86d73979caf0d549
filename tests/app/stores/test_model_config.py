"""`model.inspect` as a user calls it: folders, files, and a local hub on 127.0.0.1."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import commands
from tests.engines.configs import DATA
from tests.http_servers import QuietHandler, in_background
from tests.remote.sshd import free_port

NAME_SEARCH = "a search for 'mamba' and similar names would return"


def inspect(*words: str, hub: str = "http://127.0.0.1:9", token: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_TOKEN": token, "no_proxy": "127.0.0.1"}
    return commands.run("model.inspect", *words, cwd=DATA, env=env)


class FakeHub(QuietHandler):
    """A hub with a gated model, a renamed model, and a model that redirects to another server."""

    requests: list[tuple[str, str]]
    other_url: str

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers.get("Authorization", "")))
        configs = {
            "/Qwen/Qwen3-Next/resolve/main/config.json": "qwen3-next-80b-a3b-instruct",
            "/Qwen/Qwen3-Next/resolve/refs%2Fpr%2F1/config.json": "qwen3-8b",
        }
        if self.path in configs:
            return self.reply(200, (DATA / f"{configs[self.path]}.json").read_bytes())
        if self.path.startswith("/old/name/"):
            return self.reply(307, headers={"Location": "/Qwen/Qwen3-Next/resolve/main/config.json"})
        if self.path.startswith("/sent/away/"):
            target = f"{self.other_url}/Qwen/Qwen3-Next/resolve/main/config.json"
            return self.reply(302, headers={"Location": target})
        codes = {"/gated/model/": 403, "/private/model/": 401, "/busy/model/": 503}
        code = next((code for path, code in codes.items() if self.path.startswith(path)), 404)
        return self.reply(code, b"no", {"Retry-After": "120"} if code == 503 else None)


@contextmanager
def run_hub() -> Iterator[tuple[type[FakeHub], str]]:
    """Run a hub. Yields its handler class and its URL."""
    handler = type("RecordingHub", (FakeHub,), {"requests": [], "other_url": ""})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with in_background(server):
        yield handler, f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def hub() -> Iterator[tuple[type[FakeHub], str]]:
    with run_hub() as running:
        yield running


def test_report_on_a_folder(tmp_path: Path) -> None:
    shutil.copy(DATA / "qwen3.5-35b-a3b.json", tmp_path / "config.json")
    result = inspect(str(tmp_path))
    assert result.returncode == 0, result.stderr
    for text in (
        "recurrent: Gated DeltaNet in addition to full attention",
        "30 of 40 are recurrent",
        "text_config.layer_types: linear_attention in 30 of 40",
        "1056 tokens, 2096 with an fp8 KV cache",
        "0.17.0 and newer",
    ):
        assert text in result.stdout
    assert NAME_SEARCH not in result.stdout


@pytest.mark.parametrize(
    ("name", "kind"), [("kimi-linear-48b-a3b-instruct", "dense"), ("granite-4-8b-dense-hybrid", "recurrent")]
)
def test_misleading_name_of_a_model_is_reported(name: str, kind: str) -> None:
    assert f"{NAME_SEARCH} {kind}" in inspect(str(DATA / f"{name}.json")).stdout


def test_json_report() -> None:
    report = json.loads(inspect(str(DATA / "qwen3.5-122b-a10b-nvfp4.json"), "--json").stdout)
    expected = {
        "kind": "recurrent", "mechanism": "Gated DeltaNet", "recurrent_layers": 36, "layers": 48,
        "name": "Qwen3_5MoeForConditionalGeneration", "model_type": "qwen3_5_moe", "substring_rule": "recurrent",
        "block_tokens": {"auto": 4176, "fp8": 4176}, "vllm": {"since": "0.17.0", "until": None, "lacking": "0.16.0"},
    }  # fmt: skip
    assert {key: report[key] for key in expected} == expected
    assert report["evidence"][0] == {"path": "text_config.layer_types", "seen": "linear_attention in 36 of 48"}


def test_model_of_a_hub_is_fetched_with_the_token_in_a_header(hub: tuple[type[FakeHub], str]) -> None:
    handler, url = hub
    result = inspect("Qwen/Qwen3-Next", "--json", hub=url, token="hf_secret")
    assert json.loads(result.stdout)["block_tokens"] == {"auto": 544, "fp8": 1072}
    files = ("config.json", "chat_template.jinja", "tokenizer_config.json", "generation_config.json")
    assert handler.requests == [(f"/Qwen/Qwen3-Next/resolve/main/{name}", "Bearer hf_secret") for name in files]
    assert "hf_secret" not in result.stdout + result.stderr


def test_revision_is_fetched(hub: tuple[type[FakeHub], str]) -> None:
    result = inspect("Qwen/Qwen3-Next", "--revision", "refs/pr/1", "--json", hub=hub[1])
    assert json.loads(result.stdout)["kind"] == "dense"


def test_token_is_sent_to_a_renamed_model_but_not_to_another_server(hub: tuple[type[FakeHub], str]) -> None:
    handler, url = hub
    inspect("old/name", hub=url, token="hf_secret")
    assert {token for _, token in handler.requests} == {"Bearer hf_secret"}
    with run_hub() as (other_handler, handler.other_url):
        assert inspect("sent/away", hub=url, token="hf_secret").returncode == 0
    assert other_handler.requests[0] == ("/Qwen/Qwen3-Next/resolve/main/config.json", "")
    assert {token for _, token in other_handler.requests} == {""}


@pytest.mark.parametrize(
    ("model", "token", "code", "problem"),
    [
        ("gated/model", "", 5, "set HF_TOKEN"),
        ("gated/model", "hf_x", 5, "HF_TOKEN may belong to"),
        ("private/model", "", 5, "gated, private, or does not exist"),
        ("no/model", "", 5, "no config.json for no/model at 'main'"),
        ("busy/model", "", 3, "answered 503 for busy/model. Try again in 2 min"),
    ],
)
def test_refusal_of_the_hub_is_one_sentence(
    hub: tuple[type[FakeHub], str], model: str, token: str, code: int, problem: str
) -> None:
    result = inspect(model, hub=hub[1], token=token)
    (line,) = result.stderr.splitlines()
    assert result.returncode == code and problem in line


def test_absent_hub_is_unreachable() -> None:
    result = inspect("org/name", hub=f"http://127.0.0.1:{free_port()}")
    assert result.returncode == 3
    assert "does not answer: Connection refused." in result.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        ("{", "this is not JSON"),
        ("[]", "must be a JSON object"),
        ("\x00", "this is not JSON"),
    ],
)
def test_invalid_config_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    result = inspect(str(tmp_path))
    assert result.returncode == 5
    assert problem in result.stderr


def test_invalid_token_is_refused_and_not_printed() -> None:
    result = inspect("org/name", token="hf_\nsecret")
    assert result.returncode == 5
    assert "secret" not in result.stderr
