"""LoRA adapters of the simulated vLLM: lists, answers and errors as in a real 0.32.0 (tests/real_engine/test_adapters.py)."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparkwright.measure import http_probe
from sparkwright.sandbox.hub import Lora
from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.engine import Engine
from tests.real_engine.test_adapters import FITS, REFUSED, write_adapter
from tests.remote.sshd import free_port
from tests.sandbox.vllm.test_startup import LLAMA

TINY = {**LLAMA, "hidden_size": 256}


@contextmanager
def running_engine(folder: Path, adapters: dict[str, Lora], *options: str) -> Iterator[tuple[Engine, str, list[str]]]:
    """Yield an engine that serves or has exited, its URL and its log. The container's paths are those of the host."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY))
    paths = [f"{name}={write_adapter(folder / name, lora, name)}" for name, lora in adapters.items()]
    port, log, settled = free_port(), [], threading.Event()

    def record_line(line: str) -> None:
        log.append(line)
        if "startup complete" in line:
            settled.set()

    words = [str(model), "--served-model-name", "tiny", "--enforce-eager", "--lora-modules", *paths, *options]
    engine = Engine(words, api=VllmApi, version="0.32.0", log=record_line, host_path=Path, listen=("127.0.0.1", port))

    def run() -> None:
        engine.run()
        settled.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert settled.wait(30)
        yield engine, f"http://127.0.0.1:{port}", log
    finally:
        engine.stop()
        thread.join(30)


def ask_model(base_url: str, model: str) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "logprobs": True}
    return http_probe.send_request(base_url, "/v1/chat/completions", body=body, timeout_s=20).json()


def test_each_adapter_is_listed_and_answers_with_its_own_text(tmp_path: Path) -> None:
    with running_engine(tmp_path, {"sql": FITS, "law": FITS}, "--enable-lora") as (_, url, log):
        rows = http_probe.send_request(url, "/v1/models", timeout_s=20).json()["data"]
        listed = [(row["id"], row["parent"], row["max_model_len"]) for row in rows]
        assert listed == [("tiny", None, 8192), ("sql", "tiny", None), ("law", "tiny", None)]
        answers = {name: ask_model(url, name) for name in ("tiny", "sql", "law")}
        assert [answer["model"] for answer in answers.values()] == ["tiny", "sql", "law"]
        assert len({answer["choices"][0]["message"]["content"] for answer in answers.values()}) == 3
        assert ask_model(url, "nobody")["error"]["message"] == "The model `nobody` does not exist. Valid aliases: tiny."
    assert any(f"Loaded new LoRA adapter: name 'sql', path '{tmp_path / 'sql'}'" in line for line in log)


@pytest.mark.parametrize(("lora", "message"), REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_a_real_engine_refuses_ends_the_start(tmp_path: Path, lora: Lora, message: str) -> None:
    with running_engine(tmp_path, {"sql": lora}, "--enable-lora") as (_, _, log):
        assert any(message in line for line in log), log


def test_no_adapter_is_loaded_without_enable_lora(tmp_path: Path) -> None:
    with running_engine(tmp_path, {"sql": FITS}) as (_, _, log):
        assert any("LoRA is not enabled. Use --enable-lora to enable LoRA." in line for line in log)
