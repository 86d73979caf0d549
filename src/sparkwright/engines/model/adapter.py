"""A LoRA adapter as its files describe it: the model it was made for, its rank, and the sizes of its matrices.

Pure. The author of the files is not trusted: what is kept is bounded, and only what rules read is kept.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.trust import bounds

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: the files of an adapter
FILES = (CONFIG, WEIGHTS)
#: bytes at the beginning of the weights that are read first; the header of most adapters fits
BEGINNING_BYTES = 1 << 18
#: an adapter of a mixture with 128 experts in 48 layers has 37,000 tensors, whose header has 6 MB
HEADER_BYTES = 12 << 20
#: keys whose value changes what an adapter does, beyond a plain LoRA; source: peft's LoraConfig
EXTRAS = (
    *("use_dora", "bias", "lora_bias", "modules_to_save", "alora_invocation_tokens"),
    *("layer_replication", "use_bdlora", "use_qalora"),
)
#: parts of a tensor's path that belong to another model than the language model
OTHER_PARTS = ("vis", "audio", "image", "mm_", "multi_modal")
MOST_RANK, MOST_LAYERS, MOST_SIZE, MOST_MODULES = 1 << 16, 10_000, 1 << 30, 64
NAME_CHARS = 200
_MODULE = re.compile(r"[A-Za-z0-9_]{1,64}")
_LAYERS = ("layers", "h", "blocks", "layer")


def of_files(config: Any, header: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the lock's entry about an adapter; None if its config is none of a LoRA.

    Args:
        config: adapter_config.json.
        header: of its weights, as `header_of` returns it; None if it was not read.
    """
    if not isinstance(config, Mapping) or not bounds.count_of(config.get("r"), MOST_RANK):
        return None
    pattern = config.get("rank_pattern")
    ranks = [config["r"], *(pattern.values() if isinstance(pattern, Mapping) else ())]
    rank = max(found for value in ranks if (found := bounds.count_of(value, MOST_RANK)) is not None)
    extras = [name for name in EXTRAS if config.get(name) not in (None, False, "none", [], {})]
    about = {"base": config.get("base_model_name_or_path"), "rank": rank, "extras": extras}
    return kept({**about, **(_sizes(header) if header is not None else {})})


def kept(found: Any) -> dict[str, Any] | None:
    """Return the lock's entry about an adapter, from data of a host or a file; None for invalid data.

    base: name of the model that it was made for, "" for none. rank: the largest. extras: keys of EXTRAS that are set. layers: the
    number of the last layer that it changes, counted from 1; None if its weights were not read. sizes: by module, as q_proj, the
    numbers of its inputs and outputs; 0 where they differ among layers. architecture: of a GGUF file.
    """
    if not isinstance(found, Mapping):
        return None
    base, extras, sizes = found.get("base"), found.get("extras"), found.get("sizes")
    architecture = _printable(found.get("architecture"))
    rows = list(sizes.items())[:MOST_MODULES] if isinstance(sizes, Mapping) else []
    about = {
        "base": _printable(base),
        "rank": bounds.count_of(found.get("rank"), MOST_RANK) or 0,
        "extras": [name for name in EXTRAS if isinstance(extras, list) and name in extras],
        "layers": bounds.count_of(found.get("layers"), MOST_LAYERS),
        "sizes": {name: size for name, pair in sorted(rows, key=str) if (size := _pair(name, pair)) is not None},
    }
    return {**about, **({"architecture": architecture} if architecture else {})}


def header_of(beginning: bytes) -> Mapping[str, Any] | int | None:
    """Return the header of a safetensors file; the bytes that it needs if these end before it; None if it is none.

    source: the format's description: eight bytes with the length of a JSON object, then that.
    """
    if len(beginning) < 8:
        return None
    length = struct.unpack("<Q", beginning[:8])[0]
    if length > HEADER_BYTES:
        return None
    if len(beginning) < 8 + length:
        return int(8 + length)
    try:
        found = bounds.json_of(beginning[8 : 8 + length], most_bytes=HEADER_BYTES, depth=8)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _sizes(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return `layers` and `sizes` from a header."""
    layers, found = 0, {}  # type: int, dict[str, list[int]]
    for module, layer, side, size in _matrices(header):
        layers = max(layers, layer)
        pair = found.setdefault(module, [-1, -1])
        pair[side] = size if pair[side] in (-1, size) else 0
    return {"layers": layers or None, "sizes": {name: [max(size, 0) for size in pair] for name, pair in found.items()}}


def _matrices(header: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Yield module, layer (from 1; 0 for none), side (0: inputs, 1: outputs) and size of each matrix of the language model.

    A is [rank, inputs], B is [outputs, rank]; those of embeddings and of fused experts have other names or shapes.
    """
    for name, about in header.items():
        path, mark, _ = name.rpartition(".lora_A") if ".lora_A" in name else name.rpartition(".lora_B")
        shape = about.get("shape") if isinstance(about, Mapping) else None
        if not mark or not isinstance(shape, list) or len(shape) != 2:
            continue
        steps = path.split(".")
        if not _MODULE.fullmatch(steps[-1]) or any(step.startswith(OTHER_PARTS) for step in steps):
            continue
        side = 0 if mark == ".lora_A" else 1
        size = bounds.count_of(shape[1] if side == 0 else shape[0], MOST_SIZE)
        if size is not None:
            yield steps[-1], _layer(steps), side, size


def _layer(steps: list[str]) -> int:
    """Return the number of the layer in a tensor's path, counted from 1; 0 if there is none."""
    for before, step in itertools.pairwise(steps):
        if before in _LAYERS and step.isdecimal() and len(step) <= 4:
            return int(step) + 1
    return 0


def _pair(name: Any, pair: Any) -> list[int] | None:
    if not isinstance(name, str) or not _MODULE.fullmatch(name) or not isinstance(pair, list) or len(pair) != 2:
        return None
    return [bounds.count_of(size, MOST_SIZE) or 0 for size in pair]


def _printable(text: Any) -> str:
    shown = "".join(sign for sign in text if sign.isprintable()) if isinstance(text, str) else ""
    return shown[:NAME_CHARS]
