"""Facts and measurements from the host that can explain a slow server, for engines/slowness.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.engines.log.reader import EngineState, LogReader
from sparkwright.engines.model import roofline
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import container_labels, log_reader
from sparkwright.host.module import Context
from sparkwright.host.ollama import Ollama, OllamaAbsent, OllamaBusy
from sparkwright.trust import bounds


def read_engine_state(context: Context, container: str) -> EngineState | None:
    """Return the engine's state from the log of its last start, or None without a container or a readable log."""
    if not container:
        return None
    try:
        reader = LogReader(container_labels.engine_by_name(context.docker(), container).log)
        for chunk in log_reader.StartLog(context.docker(), container):
            reader.push(chunk)
    except SparkwrightError:
        return None
    return reader.finish()


def list_ollama_models(context: Context) -> list[tuple[str, int]] | None:
    """Return (name, bytes) of Ollama's loaded models, with 0 for an unknown size; None if Ollama does not answer."""
    try:
        models = Ollama(context.machine.ollama_url, timeout_s=2).list_loaded()
    except OllamaAbsent:
        return []
    except OllamaBusy:
        return None
    return [(model.name, model.size_bytes or 0) for model in models]


def read_meminfo(context: Context) -> dict[str, int] | None:
    """Return /proc/meminfo in bytes, or None if it cannot be read."""
    try:
        return context.machine.meminfo()
    except (OSError, ValueError):
        return None


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return a model's config.json, or an empty dict if it cannot be read."""
    try:
        return bounds.read_config(folder / "config.json")
    except (OSError, ValueError):
        return {}


def max_decode_rate(context: Context, model_dir: str) -> float | None:
    """Return the maximum decode rate of one stream, given the GPU's memory bandwidth and the model's size; None if unknown."""
    name = (context.facts.get("gpu") or {}).get("name")
    if not model_dir or name not in roofline.BANDWIDTH_BYTES_PER_S:
        return None
    folder = context.machine.expand(model_dir)
    try:
        tensors = [tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _iter_tensors(path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None
    return roofline.ceiling(name, roofline.bytes_per_token(read_model_config(folder), tensors))


def _iter_tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (name, bytes) of each tensor in a safetensors file, from its header."""
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if header_bytes > bounds.MAX_INDEX_BYTES:
            raise ValueError("the header is too large for a safetensors file")
        header = bounds.parse_json(file.read(header_bytes), max_bytes=bounds.MAX_INDEX_BYTES)
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = (bounds.count_or_none(offset) for offset in tensor["data_offsets"])
            if begin is None or end is None or end < begin:
                raise ValueError("a tensor has invalid offsets")
            yield name, end - begin
