"""A damaged config.json of a model is read quickly; values that cannot be read are unknown."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sparkwright.app.stores import model_config
from sparkwright.engines.model import roofline
from sparkwright.engines.model.architecture import classify, relevant_config
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import parallel, rules
from sparkwright.engines.vllm.prediction import VllmRequest, block_size, predict_effective_settings
from sparkwright.errors import Refused
from sparkwright.sandbox.serving.process import StartError
from sparkwright.sandbox.vllm import command_line, config
from sparkwright.trust import bounds
from tests.fuzz.harness import damaged_texts, damaged_values, feed

DATA = Path(__file__).parent.parent / "data/configs"
RAW = [path.read_bytes() for path in sorted(DATA.glob("*.json"))]
SEEDS = [json.loads(raw) for raw in RAW]
VERSION = Version("0.32.0")
TENSORS = [("model.embed_tokens.weight", 10**9), ("model.layers.0.mlp.experts.3.w1", 10**6), ("visual.x", 7)]


def check_config(model_config: Any) -> None:
    """Run every computation of the laptop and of a host that uses a model's config."""
    if not isinstance(model_config, Mapping):
        return
    architecture = classify(model_config)
    assert architecture.description
    assert all(len(item.detail) < 2000 for item in architecture.evidence)
    block_size(model_config, "auto", speculative_tokens=3)
    predict_effective_settings(VllmRequest(flags={"kv-cache-dtype": "fp8"}), architecture, VERSION)
    roofline.ceiling("NVIDIA GB10", roofline.bytes_per_token(model_config, TENSORS))
    stored = relevant_config(model_config)
    assert json.dumps(stored)
    assert dataclasses.replace(classify(stored), text_config={}) == dataclasses.replace(architecture, text_config={})
    for finding in rules.check(VllmRequest(flags={"max-num-seqs": 8}), architecture, VERSION):
        assert finding.sentence
    for split in (Split(tensor=3), Split(pipeline=3)):
        assert all(item.sentence and item.ways_out for item in parallel.check(split, {}, model_config, VERSION))


def test_damaged_values() -> None:
    feed(check_config, damaged_values(SEEDS))


def test_damaged_bytes() -> None:
    feed(lambda raw: check_config(model_config.parse_config(raw, "config.json")), damaged_texts(RAW))


def test_start_of_the_sandbox_with_a_damaged_config(tmp_path: Path) -> None:
    def start(value: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(value))
        options = command_line.parse_arguments(["/m"], "0.32.0")
        config.build_config(options, config.read_model_config("/m", tmp_path), tmp_path, "0.32.0")

    feed(start, damaged_values(SEEDS), refuses=(StartError,))


INVALID: tuple[Any, ...] = (
    10**10, 10**400, -1, 0, 1.5, float("nan"), "40", [40], ["mamba"] * 20_000, {"a": 1}, True, None,
)  # fmt: skip


@pytest.mark.parametrize("layers", INVALID, ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize("name", ["jamba-1.5-mini", "plamo-2-1b", "zamba2-7b", "qwen3.5-35b-a3b", "bamba-9b-tf5"])
def test_an_impossible_number_of_layers_is_ignored(name: str, layers: Any) -> None:
    data = json.loads((DATA / f"{name}.json").read_text())
    for part in (data, data.get("text_config") or {}):
        part |= dict.fromkeys(("num_hidden_layers", "layer_types", "layers_block_type"), layers)
    feed(check_config, iter([data]))
    assert (classify(data).recurrent_layers or 0) <= 10_000


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": ' + b"[" * 100_000, "nested deeper than 32"),
        (b"[" * 40 + b"]" * 40, "nested deeper than 32"),
        (b" " * (5 << 20), "more than 4 MiB"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "a JSON object"),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_an_unreadable_config_is_refused_with_one_sentence(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(Refused, match=message) as excinfo:
        model_config.load_config(str(tmp_path))
    assert "\n" not in str(excinfo.value)
    with pytest.raises(ValueError, match="."):
        bounds.read_config(tmp_path / "config.json")
