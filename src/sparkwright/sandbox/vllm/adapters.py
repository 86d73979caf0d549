"""LoRA adapters of the simulated engine: loaded after the model, and refused as vLLM 0.32.0 refuses them.

Source: vllm/lora/peft_helper.py, lora_model.py and entrypoints/openai/models/serving.py, and real starts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.sandbox.vllm.command_line.arguments import Arguments, Refused
from sparkwright.sandbox.vllm.hybrid import text_part
from sparkwright.trust import bounds

USUAL_RANK = 16
HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Adapter:
    """A loaded adapter."""

    name: str
    path: str


def loaded(arguments: Arguments, model: Mapping[str, Any], folder_of: Callable[[str], Path]) -> tuple[Adapter, ...]:
    """Return the adapters of --lora-modules. Raises Refused for one that the real engine does not load.

    Args:
        arguments: the engine's.
        model: the model's config.json.
        folder_of: returns the host path of a path in the container.
    """
    found = tuple(_named(arguments.values.get("lora_modules") or ()))
    most = arguments.number("max_lora_rank", USUAL_RANK)
    for adapter in found:
        why = _why_not(adapter, folder_of(adapter.path), text_part(model), most)
        if not arguments.switch("enable_lora", False):
            why = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
        if why:
            raise Refused(f"Traceback (most recent call last):\nValueError: {why}", 1)
    return found


def _named(given: Any) -> Iterator[Adapter]:
    for entry in given:
        if isinstance(entry, Mapping):
            yield Adapter(str(entry["name"]), str(entry["path"]))
        else:
            name, _, path = str(entry).partition("=")
            yield Adapter(name, path)


def _why_not(adapter: Adapter, folder: Path, text: Mapping[str, Any], most: int) -> str:
    """Return the reason for which an adapter is not loaded, or an empty string."""
    try:
        config = bounds.config_of(folder / "adapter_config.json")
        with (folder / "adapter_model.safetensors").open("rb") as file:
            header = json.loads(file.read(min(struct.unpack("<Q", file.read(8))[0], HEADER_BYTES)))
    except (OSError, ValueError, struct.error):
        return (
            f"Call to add_lora method failed: Loading lora {adapter.name} failed: No adapter found for {adapter.path}"
        )
    rank = bounds.count_of(config.get("r")) or 0
    if config.get("use_dora"):
        return "Call to add_lora method failed: vLLM does not yet support DoRA."
    if rank > most:
        return f"Call to add_lora method failed: LoRA rank {rank} is greater than max_lora_rank {most}."
    # one of a smaller model is loaded, as 0.32.0 does
    hidden = bounds.count_of(text.get("hidden_size"))
    for name, about in header.items():
        if hidden and name.endswith("q_proj.lora_A.weight") and about["shape"][1] > hidden:
            shape = about["shape"]
            return (
                "Call to add_lora method failed: The size of tensor a "
                f"({hidden}) must match the size of tensor b ({shape[1]}) at non-singleton dimension 1"
            )
    return ""
