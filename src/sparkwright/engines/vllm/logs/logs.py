"""Reads a start-up log: what the engine itself says it does. Every field is a value with its line, or unknown.

Only the last start counts; what is printed later wins over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from sparkwright.engines.vllm.failures.failures import FAILURES, LastWords
from sparkwright.engines.vllm.logs import log_lines
from sparkwright.engines.vllm.logs.engine_state import FIELDS, EngineState, Reading
from sparkwright.engines.vllm.logs.log_needles import Needles
from sparkwright.engines.vllm.logs.log_text import LINE_BYTES, LineCutter, Text, chunks_of, decode
from sparkwright.engines.vllm.logs.log_values import clock, seconds_between, value_of

__all__ = ["FIELDS", "EngineState", "Reader", "Reading", "message", "read"]

EVIDENCE_CHARS = 300
#: what is said stands at the beginning of a line; only the config dump is longer
LINE_CHARS = 4096
#: how many mentions of arguments in other lines are looked past
CONTEXT_LINES = 20
STAGE_NAMES = tuple(name for name, _ in log_lines.STAGES)


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
        reported = self._last_words.verdict()
        if reported is not None:
            self._keep("failure", reported.sentence, reported.line)
            if not self.state.ready:
                self._keep("ready", False, reported.line)
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
        if log_lines.CONFIG_DUMP.needle not in line:
            line = line[:LINE_CHARS]
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
            self.state.stage_s[before] = seconds_between(self._began[before], now)
        if now is not None:
            self._began[stage] = now
        self.state.stage = stage
        self._last_words.forget()

    def _tell_time(self, line: str) -> datetime | None:
        """The time of a line, or of the last one that told it."""
        self._clock = clock(line) or self._clock
        return self._clock

    def _since_start(self, name: str, line: str) -> None:
        began = self._began.get(STAGE_NAMES[0])
        if began is not None and self._clock is not None:
            self._keep(name, seconds_between(began, self._clock), line)

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _settings(self, line: str) -> None:
        dump = log_lines.CONFIG_DUMP.match(line)
        if dump:
            self._dump(line, dump)
            return
        for name, row in log_lines.VALUES:
            found = row.match(line)
            if found:
                self._keep(name, value_of(name, found.group(1)), line)
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
                self._keep(name, value_of(name, value.strip("'")), f"{head} ... {found.group().strip(',')}, ...")
        self._graphs()

    def _graphs(self) -> None:
        mode = self.state.reading("cudagraph_mode")
        if mode.value is not None:
            self.state.readings["cuda_graphs"] = Reading(mode.value != "NONE", mode.evidence)

    def _tuned(self, line: str) -> None:
        if log_lines.AUTOTUNE_STARTS.match(line):
            self._tuning = clock(line)
        elif log_lines.AUTOTUNE_ENDS.match(line) and self._tuning and self._clock:
            self._keep("autotune_s", seconds_between(self._tuning, self._clock), line)

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


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= EVIDENCE_CHARS else f"{line[:EVIDENCE_CHARS]} ..."


def _last_starts(block: bytes) -> int:
    """Where, in whole lines, the last but one mention of arguments is: the last start begins after it."""
    needle, at, seen = log_lines.ARGUMENTS.needle.encode(), len(block), 0
    for _ in range(2 * CONTEXT_LINES):
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
            *(death.line for death in FAILURES),
        )
    ),
    log_lines.NOISE,
)
