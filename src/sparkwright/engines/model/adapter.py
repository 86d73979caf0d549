"""Facts about a LoRA adapter from its files: base model, rank, and sizes of its matrices.

Pure functions. The files are untrusted: only bounded data that the rules need is kept.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.trust import bounds

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
#: the files of an adapter
FILES = (CONFIG_FILE, WEIGHTS_FILE)
#: number of bytes of the weights file to read first; enough for the header of most adapters
BEGINNING_BYTES = 1 << 18
#: maximum header size; the header for a mixture of 128 experts in 48 layers has 37,000 tensors and 6 MB
MAX_HEADER_BYTES = 12 << 20
#: keys of extensions to a plain LoRA; source: peft's LoraConfig
EXTENSION_KEYS = (
    *("use_dora", "bias", "lora_bias", "modules_to_save", "alora_invocation_tokens"),
    *("layer_replication", "use_bdlora", "use_qalora"),
)
#: prefixes of path components in the names of tensors outside the language model
OTHER_PART_PREFIXES = ("vis", "audio", "image", "mm_", "multi_modal")
MAX_RANK, MAX_LAYERS, MAX_SIZE, MAX_MODULES = 1 << 16, 10_000, 1 << 30, 64
MAX_NAME_CHARS = 200
_MODULE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_]{1,64}")
_LAYER_LIST_NAMES = ("layers", "h", "blocks", "layer")


def parse_adapter(config: Any, header: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the lock's entry for an adapter; None if it is not a LoRA.

    config: the parsed adapter_config.json. header: the header of its weights; None if it was not read.
    """
    if not isinstance(config, Mapping) or not bounds.count_or_none(config.get("r"), MAX_RANK):
        return None
    pattern = config.get("rank_pattern")
    ranks = [config["r"], *(pattern.values() if isinstance(pattern, Mapping) else ())]
    rank = max(valid_rank for value in ranks if (valid_rank := bounds.count_or_none(value, MAX_RANK)) is not None)
    extras = [name for name in EXTENSION_KEYS if config.get(name) not in (None, False, "none", [], {})]
    entry = {"base": config.get("base_model_name_or_path"), "rank": rank, "extras": extras}
    return validate_entry({**entry, **(_matrix_sizes(header) if header is not None else {})})


def validate_entry(data: Any) -> dict[str, Any] | None:
    """Return the lock's entry for an adapter from untrusted data; None for invalid data.

    base: name of the base model, "" if unknown. rank: the largest rank. extras: EXTENSION_KEYS that are set. layers: number of
    the last layer that the adapter changes, counted from 1; None if the weights were not read. sizes: [inputs, outputs] by module,
    such as q_proj; 0 if a size differs between layers. architecture: only from a GGUF file.
    """
    if not isinstance(data, Mapping):
        return None
    extras, sizes = data.get("extras"), data.get("sizes")
    architecture = _to_printable(data.get("architecture"))
    rows = list(sizes.items())[:MAX_MODULES] if isinstance(sizes, Mapping) else []
    entry = {
        "base": _to_printable(data.get("base")),
        "rank": bounds.count_or_none(data.get("rank"), MAX_RANK) or 0,
        "extras": [name for name in EXTENSION_KEYS if isinstance(extras, list) and name in extras],
        "layers": bounds.count_or_none(data.get("layers"), MAX_LAYERS),
        "sizes": {name: size for name, pair in sorted(rows, key=str) if (size := _parse_pair(name, pair)) is not None},
    }
    return {**entry, **({"architecture": architecture} if architecture else {})}


def parse_header(beginning: bytes) -> Mapping[str, Any] | int | None:
    """Return the header at the beginning of a safetensors file.

    Returns the number of bytes needed if `beginning` is too short, and None for an invalid file. Format: eight bytes with the
    length of a JSON object, then the object.
    """
    if len(beginning) < 8:
        return None
    length = struct.unpack("<Q", beginning[:8])[0]
    if length > MAX_HEADER_BYTES:
        return None
    if len(beginning) < 8 + length:
        return int(8 + length)
    try:
        header = bounds.parse_json(beginning[8 : 8 + length], max_bytes=MAX_HEADER_BYTES, max_depth=8)
    except ValueError:
        return None
    return header if isinstance(header, dict) else None


def _matrix_sizes(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return `layers` and `sizes` of the lock's entry."""
    layers, sizes = 0, {}  # type: int, dict[str, list[int]]
    for module, layer, side, size in _list_matrices(header):
        layers = max(layers, layer)
        pair = sizes.setdefault(module, [-1, -1])
        pair[side] = size if pair[side] in (-1, size) else 0
    return {"layers": layers or None, "sizes": {name: [max(size, 0) for size in pair] for name, pair in sizes.items()}}


def _list_matrices(header: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Yield module, layer (from 1; 0 if unknown), side (0 for inputs, 1 for outputs) and size of the language model's matrices.

    Matrix A is [rank, inputs], B is [outputs, rank]. Embeddings and fused experts have other names or shapes.
    """
    for name, tensor in header.items():
        path, separator, _ = name.rpartition(".lora_A") if ".lora_A" in name else name.rpartition(".lora_B")
        shape = tensor.get("shape") if isinstance(tensor, Mapping) else None
        if not separator or not isinstance(shape, list) or len(shape) != 2:
            continue
        path_parts = path.split(".")
        if not _MODULE_NAME_PATTERN.fullmatch(path_parts[-1]) or any(
            path_part.startswith(OTHER_PART_PREFIXES) for path_part in path_parts
        ):
            continue
        side = 0 if separator == ".lora_A" else 1
        size = bounds.count_or_none(shape[1] if side == 0 else shape[0], MAX_SIZE)
        if size is not None:
            yield path_parts[-1], _layer_number(path_parts), side, size


def _layer_number(path_parts: list[str]) -> int:
    """Return the layer number in a tensor's path, counted from 1; 0 if there is none."""
    for word, path_part in itertools.pairwise(path_parts):
        if word in _LAYER_LIST_NAMES and path_part.isdecimal() and len(path_part) <= 4:
            return int(path_part) + 1
    return 0


def _parse_pair(name: Any, pair: Any) -> list[int] | None:
    if (
        not isinstance(name, str)
        or not _MODULE_NAME_PATTERN.fullmatch(name)
        or not isinstance(pair, list)
        or len(pair) != 2
    ):
        return None
    return [bounds.count_or_none(size, MAX_SIZE) or 0 for size in pair]


def _to_printable(text: Any) -> str:
    printable = "".join(character for character in text if character.isprintable()) if isinstance(text, str) else ""
    return printable[:MAX_NAME_CHARS]
