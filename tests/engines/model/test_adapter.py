"""Adapters: base model, rank and sizes from untrusted files, and the bounded entry in the lock."""

import json
import struct
from typing import Any

import pytest

from sparkwright.engines.model import adapter
from sparkwright.sandbox.hub import Lora, safetensors

CONFIG = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": "org/base", "target_modules": ["q_proj"]}
PREFIX = "base_model.model.model"


def build_header(**shapes: list[int]) -> dict[str, Any]:
    """Return a header with these shapes; __ stands for a dot."""
    return {f"{PREFIX}.{name.replace('__', '.')}.weight": {"shape": shape} for name, shape in shapes.items()}


def parse_entry(header: Any = None, **config: Any) -> dict[str, Any]:
    entry = adapter.parse_adapter({**CONFIG, **config}, header)
    assert entry is not None
    assert adapter.validate_entry(entry) == entry, "the entry of the lock is read back"
    return entry


def test_base_rank_layers_and_sizes_are_read_from_the_files() -> None:
    lora = Lora("Qwen/Qwen3-8B", 4096, (0, 35), rank=8, output_size=2048)
    header = adapter.parse_header(safetensors(lora.shapes, "x"))
    entry = adapter.parse_adapter(lora.config, header if isinstance(header, dict) else None)
    assert entry == {
        "base": "Qwen/Qwen3-8B",
        "rank": 8,
        "extras": [],
        "layers": 36,
        "sizes": {"o_proj": [2048, 4096], "q_proj": [4096, 2048]},
    }


def test_the_rank_is_the_largest_of_all_modules() -> None:
    assert parse_entry(rank_pattern={"layers.0.q_proj": 64, "v_proj": "x"})["rank"] == 64


@pytest.mark.parametrize(
    ("config", "extras"),
    [
        (
            {"use_dora": True, "bias": "lora_only", "modules_to_save": ["lm_head"]},
            ["use_dora", "bias", "modules_to_save"],
        ),
        ({"use_dora": False, "bias": "none", "modules_to_save": None, "layer_replication": []}, []),
    ],
)
def test_features_beyond_a_plain_lora_are_named(config: dict[str, Any], extras: list[str]) -> None:
    assert parse_entry(**config)["extras"] == extras


def test_sizes_that_differ_among_layers_and_other_parts_are_unknown() -> None:
    header = build_header(
        layers__0__mlp__down_proj__lora_A=[8, 512],
        layers__1__mlp__experts__3__down_proj__lora_A=[8, 128],
        layers__1__mlp__down_proj__lora_B=[256, 8],
        visual__blocks__40__attn__q_proj__lora_A=[8, 1280],
        layers__1__experts__gate_up_proj__lora_A=[8, 4, 4],
        embed_tokens__lora_embedding_A=[8, 1000],
    )
    entry = parse_entry(header)
    assert (entry["layers"], entry["sizes"]) == (2, {"down_proj": [0, 256]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\2",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"{...",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
    ],
)
def test_an_invalid_header_is_none(data: bytes) -> None:
    assert adapter.parse_header(data) is None


def test_a_header_that_continues_returns_its_length() -> None:
    assert adapter.parse_header(struct.pack("<Q", 500) + b"{") == 508


@pytest.mark.parametrize("config", [None, [], {}, {"r": 0}, {"r": "8"}, {"r": True}, {"r": 10**9}])
def test_an_invalid_config_is_none(config: Any) -> None:
    assert adapter.parse_adapter(config, None) is None


HOSTILE_ENTRIES: list[Any] = [
    {"rank": -1, "base": ["x"], "sizes": [1], "layers": 10**12, "extras": "use_dora"},
    {"base": "\x1b[31m" + "x" * 10_000, "rank": 10**9, "sizes": {"../q": [1, 2], "q_proj": [1], "v_proj": ["1", 2]}},
    {"sizes": {f"m{n}": [n, n] for n in range(10_000)}, "extras": ["use_dora", "rm -rf"], "architecture": "\x07" * 500},
    {"sizes": {1: [1, 2]}, "base": None},
]


@pytest.mark.parametrize("entry", HOSTILE_ENTRIES)
def test_a_hostile_entry_is_bounded_and_printable(entry: Any) -> None:
    valid = adapter.validate_entry(entry)
    assert valid is not None and len(json.dumps(valid)) < 8000
    assert valid["base"].isprintable() and "\x1b" not in valid["base"]
    assert valid["rank"] == 0 and set(valid["extras"]) <= set(adapter.EXTENSION_KEYS)
    assert all(name.isidentifier() for name in valid["sizes"]) and adapter.validate_entry(valid) == valid


@pytest.mark.parametrize("entry", [None, "x", [1]])
def test_an_entry_of_another_type_is_none(entry: Any) -> None:
    assert adapter.validate_entry(entry) is None
