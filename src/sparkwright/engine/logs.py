"""Reads a start-up log: what the engine itself says it does. Every field is a value with its line, or unknown.

Only the last start counts; what is printed later wins over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engine import deaths, log_lines

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
TAIL_LINES = 400
EVIDENCE_CHARS = 300
WHOLE_NUMBERS = ("block_size", "kv_cache_tokens", "max_model_len")
NUMBERS = ("max_concurrency", "weights_s", "init_s")


@dataclass(frozen=True, slots=True)
class Reading:
    """value: None when unknown. evidence: the line it was read from."""

    value: Any = None
    evidence: str = ""


@dataclass
class EngineState:
    """What the last start of an engine said about itself.

    readings: by name (version, chunked_prefill, prefix_caching, mamba_cache_mode, block_size, kv_cache_dtype, kv_cache_tokens,
    max_concurrency, attention_backend, quantization, architecture, max_model_len, weights_s, init_s). stage: of
    log_lines.STAGES, empty before the first. shards: loaded of all. died: one sentence, or None.
    """

    readings: dict[str, Reading] = field(default_factory=dict)
    stage: str = ""
    shards: tuple[int, int] = (0, 0)
    warnings: list[str] = field(default_factory=list)
    died: Reading = field(default_factory=Reading)

    def value(self, name: str) -> Any:
        """A reading's value, None when unknown."""
        return self.readings.get(name, Reading()).value

    @property
    def ready(self) -> bool:
        return self.stage == "ready"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: values by name, null for unknown, and the evidence beside them."""
        names = (*log_lines.DUMP_FIELDS, *log_lines.VALUES)
        return {
            **{name: self.value(name) for name in names},
            "stage": self.stage or None,
            "ready": self.ready,
            "died": self.died.value,
            "warnings": self.warnings,
            "evidence": {name: one.evidence for name, one in self.readings.items()},
        }


class Reader:
    """Takes lines as they come; `state` is what is known so far. Memory stays bounded however long the log is."""

    def __init__(self) -> None:
        self.state = EngineState()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stopping = False

    def feed(self, line: str) -> None:
        """Take in one line."""
        if log_lines.START.search(line):
            version = self.state.readings.get("version")
            self.state = EngineState(readings={"version": version} if version else {})
            self._tail.clear()
            self._stopping = False
        self._stopping = self._stopping or bool(log_lines.STOPPING.search(line))
        if not self._stopping:
            self._tail.append(line)
        self._stages(line)
        if "config: " in line:
            self._dump(line)
        for name, pattern in log_lines.VALUES.items():
            found = pattern.search(line)
            if found and not (name == "version" and "version" in self.state.readings and "config:" not in line):
                self._keep(name, found.group(1), line)
        self._overrides(line)

    def finish(self) -> EngineState:
        """The state at the end, with the reason of its death if the log holds one and it never became ready after it."""
        told = deaths.explain(self._tail)
        if told is not None and (not self.state.ready or "engine died" in told[0]):
            self.state.died = Reading(told[0], told[1][:EVIDENCE_CHARS])
        return self.state

    def _stages(self, line: str) -> None:
        order = [name for name, _ in log_lines.STAGES]
        for name, pattern in log_lines.STAGES:
            if pattern.search(line) and (not self.state.stage or order.index(name) > order.index(self.state.stage)):
                self.state.stage = name
        shards = log_lines.SHARDS.search(line)
        if shards:
            self.state.shards = (int(shards.group(1)), int(shards.group(2)))

    def _dump(self, line: str) -> None:
        found = log_lines.CONFIG_DUMP.search(line)
        if found is None:
            return
        self._keep("version", found.group("version"), line)
        for name, labels in log_lines.DUMP_FIELDS.items():
            for label in labels:
                value = re.search(rf"\b{label}=([^,\s]+)", found.group("config"))
                if value:
                    self._keep(name, value.group(1).strip("'"), line)

    def _overrides(self, line: str) -> None:
        if log_lines.CHUNKED_PREFILL_OFF_LATER.search(line):
            self._keep("chunked_prefill", "False", line)
        elif log_lines.CHUNKED_PREFILL_ON.search(line) and "chunked_prefill" not in self.state.readings:
            self._keep("chunked_prefill", "True", line)
        if log_lines.PREFIX_CACHING_OFF_LATER.search(line):
            self._keep("prefix_caching", "False", line)
        if any(pattern.search(line) for pattern in log_lines.WARNINGS):
            self.state.warnings.append(line.strip()[:EVIDENCE_CHARS])

    def _keep(self, name: str, text: str, line: str) -> None:
        self.state.readings[name] = Reading(_typed(name, text), line.strip()[:EVIDENCE_CHARS])


def read(text: str | bytes | Iterable[str | bytes]) -> EngineState:
    """The state that a whole log tells; truncated, coloured and non-UTF-8 logs are taken as they are."""
    reader = Reader()
    for line in lines_of(text):
        reader.feed(line)
    return reader.finish()


def lines_of(text: str | bytes | Iterable[str | bytes]) -> Iterator[str]:
    """Lines without colour. A carriage return begins a new one: progress bars are written with it."""
    chunks: Iterable[str | bytes] = [text] if isinstance(text, str | bytes) else text
    for chunk in chunks:
        decoded = chunk.decode(errors="replace") if isinstance(chunk, bytes) else chunk
        for line in re.split(r"[\r\n]+", decoded):
            if line:
                yield ANSI.sub("", line)


def _typed(name: str, text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    if name in WHOLE_NUMBERS:
        return int(text.replace(",", ""))
    return float(text) if name in NUMBERS else text
