"""Reads a start-up log: what the engine itself says it does. Every field is a value with its line, or unknown.

Only the last start counts; what is printed later wins over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sparkwright.engine import log_lines
from sparkwright.engine.deaths import DEATHS, LastWords
from sparkwright.engine.log_needles import Needles
from sparkwright.engine.log_text import LINE_BYTES, LineCutter, Text, chunks_of, decode

EVIDENCE_CHARS = 300
#: how many mentions of arguments in other lines are looked past
LOOK_BACK = 20
STAGE_NAMES = tuple(name for name, _ in log_lines.STAGES)

#: every reading by name, in the order a person asks for them
FIELDS: tuple[str, ...] = (
    *("version", "architecture", "chunked_prefill", "prefix_caching", "block_size", "mamba_cache_mode"),
    *("kv_cache_dtype", "kv_cache_tokens", "max_concurrency", "max_model_len", "attention_backend", "quantization"),
    *("cuda_graphs", "cudagraph_mode"),
    *("weights_s", "compile_s", "autotune_s", "graphs_s", "init_s", "ready_s"),
    *("ready", "stopped", "died"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """value: None when unknown. evidence: the line it was read from."""

    value: Any = None
    evidence: str = ""


UNKNOWN = Reading()


@dataclass
class EngineState:
    """What the last start of an engine said about itself.

    readings: by name, see FIELDS; the ones that end in _s are seconds. quantization is "none" for a model that has none.
    stage: of log_lines.STAGES, empty before the first. stage_s: seconds from a stage's first line to the next stage's, where
    the log tells the time. shards: loaded of all. died: one sentence, or None.
    """

    readings: dict[str, Reading] = field(default_factory=dict)
    stage: str = ""
    stage_s: dict[str, float] = field(default_factory=dict)
    shards: tuple[int, int] = (0, 0)
    warnings: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """A reading's value, None when unknown."""
        return self.reading(name).value

    def reading(self, name: str) -> Reading:
        """A value with its evidence; UNKNOWN when the log does not tell."""
        return self.readings.get(name, UNKNOWN)

    @property
    def ready(self) -> bool:
        """Whether this start said that it was ready; it may have stopped or died since."""
        return self.value("ready") is True

    @property
    def died(self) -> Reading:
        return self.reading("died")

    @property
    def known(self) -> bool:
        """Whether the log holds anything of an engine's start."""
        return bool(self.readings or self.stage)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: values by name, null for unknown, and the evidence beside them."""
        return {
            **{name: self.value(name) for name in FIELDS},
            "stage": self.stage or None,
            "stage_s": self.stage_s,
            "warnings": self.warnings,
            "evidence": {name: self.readings[name].evidence for name in FIELDS if name in self.readings},
        }


class Reader:
    """Takes a log as it comes, by lines or by chunks of bytes; `state` is what is known so far.

    Memory stays bounded however long the log is: of its text only evidence is kept.
    """

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._announced = False
        self._stopping = False
        self._count = 0
        self._begin()

    def feed(self, line: str) -> bool:
        """Take in one line, without its end. Returns whether another start begins with it: what was known is forgotten."""
        before = self.state
        raw = line.encode(errors="replace")[:LINE_BYTES]
        if raw and not NEEDLES.is_noise(raw):
            self._count += 1
            if NEEDLES.in_line(raw):
                self._take(decode(raw))
        return before.known and self.state is not before

    def push(self, chunk: bytes) -> None:
        """Take in a piece of the log, cut anywhere."""
        self._lines(self._cutter.push(chunk))

    def finish(self) -> EngineState:
        """The state at the end, with the reason of its death if the log holds one."""
        self._lines(self._cutter.rest())
        told = self._last_words.told()
        if told is not None:
            self._keep("died", told.sentence, told.line)
            if not self.state.ready:
                self._keep("ready", False, told.line)
        return self.state

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _lines(self, block: bytes) -> None:
        before = self._count
        found, lines = NEEDLES.in_block(block[_last_starts(block) :], LINE_BYTES)
        for at, line in found:
            self._count = before + at + 1
            if not NEEDLES.is_noise(line):
                self._take(decode(line))
        self._count = before + lines

    def _take(self, line: str) -> None:
        self._starts(line)
        self._stage(line)
        self._settings(line)
        if self._stopping:
            return
        self._last_words.feed(line, self._count, ready=self.state.ready)
        if log_lines.STOPPING.match(line) or (self.state.ready and log_lines.STOPPING_WHEN_READY.match(line)):
            self._stopping = True
            self._keep("stopped", True, line)

    # -- starts and stages -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.state = EngineState()
        self._last_words = LastWords()
        self._stopping = False
        self._began: dict[str, datetime] = {}
        self._clock: datetime | None = None
        self._tuning: datetime | None = None

    def _starts(self, line: str) -> None:
        """A start begins with the banner, or with the arguments when they follow none."""
        announces = any(banner.match(line) for banner in log_lines.BANNERS)
        asks = log_lines.ARGUMENTS.match(line)
        refuses = log_lines.USAGE.match(line) or (self.state.stage and log_lines.ARGPARSE.match(line))
        if announces or (asks and not self._announced) or refuses:
            self._begin()
        if announces or asks:
            self._announced = announces

    def _stage(self, line: str) -> None:
        now = self._tell_time(line)
        reached = STAGE_NAMES.index(self.state.stage) if self.state.stage else -1
        for at, (name, beginnings) in enumerate(log_lines.STAGES):
            if at > reached and any(one.match(line) for one in beginnings):
                self._enter(name, now)
                if name == "ready":
                    self._keep("ready", True, line)
                    self._since_start("ready_s", line)
        shards = log_lines.SHARDS.match(line)
        if shards:
            self.state.shards = (int(shards.group(1)), int(shards.group(2)))

    def _enter(self, stage: str, now: datetime | None) -> None:
        before = self.state.stage
        if before in self._began and now is not None:
            self.state.stage_s[before] = _seconds(self._began[before], now)
        if now is not None:
            self._began[stage] = now
        self.state.stage = stage
        self._last_words.forget()

    def _tell_time(self, line: str) -> datetime | None:
        """The time of a line, or of the last one that told it."""
        self._clock = _clock(line) or self._clock
        return self._clock

    def _since_start(self, name: str, line: str) -> None:
        began = self._began.get(STAGE_NAMES[0])
        if began is not None and self._clock is not None:
            self._keep(name, _seconds(began, self._clock), line)

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _settings(self, line: str) -> None:
        dump = log_lines.CONFIG_DUMP.match(line)
        if dump:
            self._dump(line, dump)
            return
        for name, row in log_lines.VALUES:
            found = row.match(line)
            if found:
                self._keep(name, TYPES.get(name, str)(found.group(1)), line)
        if any(row.match(line) for row in log_lines.CHUNKED_PREFILL_OFF_LATER):
            self._keep("chunked_prefill", False, line)
        elif log_lines.CHUNKED_PREFILL_ON.match(line) and "chunked_prefill" not in self.state.readings:
            self._keep("chunked_prefill", True, line)
        if log_lines.PREFIX_CACHING_OFF_LATER.match(line):
            self._keep("prefix_caching", False, line)
        self._graphs()
        self._tuned(line)
        for row in log_lines.WARNINGS:
            if row.match(line):
                self._warn(row, line)

    def _dump(self, line: str, dump: re.Match[str]) -> None:
        head = line[: dump.start("config")].strip()
        self._keep("version", dump.group("version"), f"{head} ...")
        for name, pattern in log_lines.DUMP_FIELDS.items():
            found = pattern.search(dump.group("config"))
            if found:
                value = "0" if found.groupdict().get("eager") else found.group(1)
                self._keep(name, TYPES.get(name, str)(value.strip("'")), f"{head} ... {found.group().strip(',')}, ...")
        self._graphs()

    def _graphs(self) -> None:
        mode = self.state.reading("cudagraph_mode")
        if mode.value is not None:
            self.state.readings["cuda_graphs"] = Reading(mode.value != "NONE", mode.evidence)

    def _tuned(self, line: str) -> None:
        if log_lines.AUTOTUNE_STARTS.match(line):
            self._tuning = _clock(line)
        elif log_lines.AUTOTUNE_ENDS.match(line) and self._tuning and self._clock:
            self._keep("autotune_s", _seconds(self._tuning, self._clock), line)

    def _warn(self, row: log_lines.Line, line: str) -> None:
        """Each kind once: some come with every request."""
        if not any(row.match(one) for one in self.state.warnings):
            self.state.warnings.append(_shortened(line))

    def _keep(self, name: str, value: Any, line: str) -> None:
        if value is not None:
            self.state.readings[name] = Reading(value, _shortened(line))


def read(text: Text) -> EngineState:
    """The state that a whole log tells.

    text: the log, or pieces of it in their order, or a file opened as bytes. Truncated, coloured and non-UTF-8 logs are
    taken as they are; nothing in a log raises.
    """
    reader = Reader()
    for chunk in chunks_of(text):
        reader.push(chunk)
    return reader.finish()


def message(line: str) -> str:
    """A line without its prefix: what is said, not who says it and when."""
    return log_lines.PREFIX.sub("", line, count=1)


def _truth(text: str) -> bool:
    return text == "True"


def _whole(text: str) -> int | None:
    digits = text.replace(",", "")
    return int(digits) if 0 < len(digits) < 20 else None


def _number(text: str) -> float | None:
    return float(text) if text.count(".") < 2 and text != "." else None


def _named(text: str) -> str:
    return "none" if text == "None" else text


def _graph_mode(text: str) -> str:
    return log_lines.CUDAGRAPH_NUMBERS.get(text.replace(",", ", ").replace(",  ", ", "), text)


TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("chunked_prefill", "prefix_caching"), _truth),
    **dict.fromkeys(("block_size", "kv_cache_tokens", "max_model_len"), _whole),
    **dict.fromkeys(("max_concurrency", "weights_s", "compile_s", "graphs_s", "init_s"), _number),
    "quantization": _named,
    "cudagraph_mode": _graph_mode,
}


def _clock(line: str) -> datetime | None:
    """The time of a line; vLLM's tell no year, so that of a leap year."""
    found = log_lines.CLOCK.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
    try:
        return datetime(2024, month, day, hour, minute, second, int(found.group(6) or 0) * 1000)
    except ValueError:
        return None


def _seconds(begin: datetime, end: datetime) -> float:
    """Between two times without a year: a start that ends before it began went on into the next year."""
    if end < begin - timedelta(days=180):
        end += timedelta(days=366)
    return max(0.0, round((end - begin).total_seconds(), 3))


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= EVIDENCE_CHARS else f"{line[:EVIDENCE_CHARS]} ..."


def _last_starts(block: bytes) -> int:
    """Where, in whole lines, the last but one mention of arguments is: the last start begins after it."""
    needle, at, seen = log_lines.ARGUMENTS.needle.encode(), len(block), 0
    for _ in range(2 * LOOK_BACK):
        at = block.rfind(needle, 0, at)
        if at < 0:
            return 0
        begin = block.rfind(b"\n", 0, at) + 1
        line = block[begin : block.find(b"\n", at)]
        seen += len(line) <= LINE_BYTES and not NEEDLES.is_noise(line)
        if seen == 2:
            return begin
    return 0


NEEDLES = Needles(
    (
        row.needle
        for row in (
            *(log_lines.ARGUMENTS, log_lines.USAGE, log_lines.CONFIG_DUMP, *log_lines.BANNERS, log_lines.SHARDS),
            *(row for _, row in log_lines.VALUES),
            *(row for _, rows in log_lines.STAGES for row in rows),
            *(log_lines.CHUNKED_PREFILL_ON, *log_lines.CHUNKED_PREFILL_OFF_LATER, *log_lines.WARNINGS),
            log_lines.PREFIX_CACHING_OFF_LATER,
            *(log_lines.AUTOTUNE_STARTS, log_lines.AUTOTUNE_ENDS, log_lines.STOPPING, log_lines.STOPPING_WHEN_READY),
            *(death.line for death in DEATHS),
        )
    ),
    log_lines.NOISE,
)
