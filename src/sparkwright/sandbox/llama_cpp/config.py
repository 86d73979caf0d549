"""Settings that a simulated llama-server derives from its command line, or the errors with which the real one exits.

Observed on b11549.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.llama_cpp import command_line, flags

#: of the simulated models
TRAINED = 131072
BATCH = 2048
#: bytes of a token's keys and values, by what an f16 one takes: 20 layers of 8 heads of 128
KV_BYTES = 2 * 20 * 8 * 128 * 2
KV_SHARE = {
    "f32": 2.0,
    "f16": 1.0,
    "bf16": 1.0,
    "q8_0": 0.53,
    "q4_0": 0.28,
    "q4_1": 0.31,
    "q5_0": 0.34,
    "q5_1": 0.37,
    "iq4_nl": 0.28,
}


class Refused(Exception):
    """The server exits with code 1 after these log lines."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.lines = lines


@dataclass(frozen=True)
class Config:
    """The settings of a llama-server."""

    model: str
    host: str
    port: int
    alias: str
    #: requested context of one slot, tokens
    asked: int
    #: actual context of one slot, tokens
    context: int
    max_num_seqs: int
    kv_types: tuple[str, str]
    keys: tuple[str, ...]
    metrics: bool
    verbosity: int
    budget: int = BATCH
    #: chat templates are rendered with tools
    jinja: bool = True
    #: accepts pictures
    sees: bool = False
    #: returns thinking in a field of its own
    thinks: bool = True
    chunked_prefill: bool = True
    #: files of LoRA adapters, which every request gets
    adapters: tuple[str, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache, bytes."""
        share = sum(KV_SHARE.get(kind, 1.0) for kind in self.kv_types) / 2
        return int(self.context * self.max_num_seqs * KV_BYTES * share)


def config(words: Sequence[str]) -> Config:
    """Return the settings of a command line. Raises Refused."""
    _refuse(words)
    command = command_line.parsed(words)
    given = command.flags
    if not command.model:
        raise Refused("error: no model is given", "exiting due to model loading error")
    kinds = str(given.get("cache-type-k") or "f16"), str(given.get("cache-type-v") or "f16")
    if kinds[1].startswith(("q", "iq")) and flags.is_on(given.get("flash-attn", "auto")) is False:
        raise Refused(
            "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
            f"srv    load_model: failed to create context with model, '{command.model}'",
        )
    context = flags.context(given) or TRAINED
    keys = tuple(key for key in str(given.get("api-key") or "").split(",") if key)
    return Config(
        model=command.model,
        host=str(given.get(flags.HOST) or "0.0.0.0"),  # LLAMA_ARG_HOST of the image
        port=flags.port(given),
        alias=flags.served_name(given, command.model),
        asked=context,
        context=min(context, TRAINED),
        max_num_seqs=flags.slots(given),
        kv_types=kinds,
        keys=keys,
        metrics=bool(given.get(flags.METRICS)),
        verbosity=_number(given.get(flags.VERBOSITY), 3),
        jinja=flags.is_on(given.get("jinja", True)) is not False,
        sees=bool(given.get("mmproj")),
        thinks=given.get("reasoning-format", "auto") != "none",
        adapters=tuple(path for path in str(given.get("lora") or "").split(",") if path),
    )


def _refuse(words: Sequence[str]) -> None:
    """Raise Refused for words that the parser does not accept."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, _ = flags.by_word().get(word.lstrip("-").replace("_", "-"), (None, False))
        if option is None or not word.startswith("-"):
            raise Refused(f"error: invalid argument: {word}")
        if option.kind in ("switch", "bare"):
            continue
        if not rest:
            raise Refused(f'error while handling argument "{word}": expected value for argument')
        value = rest.pop(0)
        if option.kind == "two" and rest:
            rest.pop(0)
        elif flags.value_misfit(option.name, value):
            why = f"Unsupported cache type: {value}" if option.name.startswith("cache-type") else "stoi"
            raise Refused(f'error while handling argument "{word}": {why}', "", "usage:", f"{word} ...")


def _number(given: Any, usual: int) -> int:
    found = flags.number(given)
    return usual if found is None else found
