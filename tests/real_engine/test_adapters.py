"""LoRA adapters in a real vLLM, with the files of the sandbox's hub: served by name, and refused as the rules predict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.flags import with_adapters
from sparkwright.engines.model import adapter as adapter_files
from sparkwright.engines.recipe_rules import ADAPTER_RULES, AdapterCase
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import http_probe
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.sandbox.hub import Lora, safetensors
from tests.modules.context import RecordingContext
from tests.real_engine.engine import Engine, serving, serving_ready

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
#: fits the tiny model "dense"; with this scale its answers change
FITS = Lora("tiny/dense", 256, (0, 1, 2, 3), rank=8, output_size=256, alpha=4000)
NAME, ASK_S = "tiny", 120.0


def write_adapter(folder: Path, lora: Lora, seed: str) -> str:
    """Write an adapter's folder. Return its path."""
    folder.mkdir()
    (folder / adapter_files.CONFIG_FILE).write_text(json.dumps(lora.config))
    (folder / adapter_files.WEIGHTS_FILE).write_bytes(safetensors(lora.shapes, seed))
    return str(folder)


def serve_words(engine: Engine, paths: dict[str, str], **more: Any) -> list[str]:
    """Return the arguments of a recipe with these adapters."""
    place = flags.ADAPTER_FLAGS
    assert place is not None
    options = with_adapters({"served-model-name": NAME, "max-model-len": 2048, "enforce-eager": True}, place, paths)
    return [str(engine.models / "dense"), *flags.argv({**options, **more})]


def ask_model(base_url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    answer = http_probe.send_request(base_url, "/v1/chat/completions", body=body, timeout_s=ASK_S)
    assert answer.status == 200, answer.body
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["message"]["content"])


def lint_refusal(engine: Engine, lora: Lora, max_rank: int = 16) -> str:
    """Return the sentence with which `lint` refuses an adapter of the tiny model; empty if it does not."""
    header = adapter_files.parse_header(safetensors(lora.shapes, "x"))
    assert isinstance(header, dict)
    entry = adapter_files.parse_adapter(lora.config, header)
    assert entry is not None
    case = AdapterCase({"max-lora-rank": max_rank}, "tiny/dense", engine.model_config("dense"), {"sql": entry})
    return next((finding.sentence for finding in ADAPTER_RULES.check(case) if finding.severity == "error"), "")


def test_each_adapter_is_listed_and_generates_a_different_text(engine: Engine, tmp_path: Path) -> None:
    """An adapter of a smaller model is also loaded, without a warning: only the rules for recipes refuse it."""
    small = replace(FITS, hidden_size=128, output_size=128)
    adapters = {"sql": FITS, "law": FITS, "small": small}
    paths = {name: write_adapter(tmp_path / name, lora, name) for name, lora in adapters.items()}
    argv = serve_words(engine, paths, **{"max-loras": 3, "max-lora-rank": 8})
    with serving_ready(engine, argv, tmp_path / "log") as server:
        rows = {row["id"]: row for row in server.ask("/v1/models").json()["data"]}
        assert list(rows) == [NAME, "sql", "law", "small"]
        assert (rows["sql"]["root"], rows["sql"]["parent"]) == (paths["sql"], NAME)
        texts = {name: ask_model(server.base_url, name) for name in (NAME, "sql", "law", "small")}
        assert len({texts[NAME], texts["sql"], texts["law"]}) == 3, texts
        args = VerifyHealth.Args(server.base_url, NAME, ["sql", "law"], timeout_s=ASK_S)
        context = RecordingContext(tmp_path / "host")
        proved = VerifyHealth().check_server(args, context, HTTP)
        assert not proved.failed and "; sql: generates: 8 tokens" in proved.msg, proved.msg
        missing = VerifyHealth().check_server(replace(args, adapters=["sql", "nobody"]), context, HTTP)
        assert missing.failed and "nobody" in missing.msg
    assert lint_refusal(engine, FITS) == ""
    assert "its o_proj has 128 inputs, the model's has 256" in lint_refusal(engine, small)


REFUSED = {
    "larger model": (
        replace(FITS, hidden_size=512),
        "The size of tensor a (256) must match the size of tensor b (512)",
    ),
    "rank above the flag": (replace(FITS, rank=64), "LoRA rank 64 is greater than max_lora_rank 16."),
    "DoRA": (replace(FITS, extras={"use_dora": True}), "vLLM does not yet support DoRA."),
}


@pytest.mark.parametrize(("lora", "line"), REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_vllm_refuses_is_refused_by_lint(engine: Engine, tmp_path: Path, lora: Lora, line: str) -> None:
    """The sandbox's vLLM refuses it with the same line: tests/sandbox/vllm/test_adapters.py."""
    argv = serve_words(engine, {"sql": write_adapter(tmp_path / "sql", lora, "x")})
    with serving(engine, argv, tmp_path / "log") as server:
        assert not server.ready
    assert line in server.log.read_text()
    assert lint_refusal(engine, lora)
