"""A LoRA adapter of the real llama-server, loaded with the flag that a recipe's adapter becomes."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.flags import with_adapters
from sparkwright.engines.llama_cpp import files, flags
from tests.real_llama import server as servers
from tests.real_llama import tiny_gguf
from tests.real_llama.tiny_gguf import Shape

SMALL = ("-c", "1024", "-np", "1", "-a", "sql")


def adapter_words(adapter: Path) -> tuple[str, ...]:
    """Return the words of the command line for a recipe's adapter."""
    assert flags.ADAPTER_FLAGS is not None
    return flags.argv(with_adapters({}, flags.ADAPTER_FLAGS, {"sql": str(adapter)}))


def ask_model(server: servers.Server, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0}
    answer = server.ask("/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    return str(answer.body["choices"][0]["message"]["content"])


def test_an_adapter_is_applied_to_every_request(tiny: Path, tmp_path: Path) -> None:
    adapter = tiny_gguf.write_adapter(tmp_path / "sql-lora.gguf")
    unknown = {"base": "", "rank": 0, "extras": [], "layers": None, "sizes": {}}
    assert files.adapter_of(adapter.read_bytes()) == {"architecture": "llama", **unknown}
    with servers.serving(tmp_path, tiny, *SMALL) as server:
        plain = ask_model(server, "sql")
    with servers.serving(tmp_path, tiny, *SMALL, *adapter_words(adapter)) as server:
        rows: Any = server.ask("/lora-adapters").body
        assert [(row["path"], row["scale"]) for row in rows] == [(str(adapter), 1.0)]
        texts = {ask_model(server, name) for name in ("sql", "tiny", "anything")}
    assert len(texts) == 1 and plain not in texts


@pytest.mark.parametrize(("shape", "architecture"), [(Shape(heads=2), "llama"), (Shape(), "qwen2")])
def test_an_adapter_of_another_model_is_not_loaded(tiny: Path, tmp_path: Path, shape: Shape, architecture: str) -> None:
    """Lint reports this before the start."""
    adapter = tiny_gguf.write_adapter(tmp_path / "other.gguf", shape, architecture)
    with servers.running_server(tmp_path, "-m", str(tiny), *SMALL, *adapter_words(adapter)) as server:
        assert not server.wait_until_served(), server.log
        assert f"failed to load lora adapter '{adapter}'" in server.log
