"""A reader of an engine's log: its settings and its progress, each with the line as evidence, or unknown.

Only the last start counts; later lines win over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

from datetime import datetime

from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.last_words import Exceptions, LastWords, Words
from sparkwright.engines.log.state import EngineState, Reading, shortened
from sparkwright.engines.log.text import (
    LINE_BYTES,
    Line,
    LineCutter,
    Text,
    chunks_of,
    clock,
    decode,
    seconds_between,
    unwrapped,
)

__all__ = ["EngineState", "Reader", "Reading", "message", "read"]

#: a line's message is at its beginning; few lines are longer
LINE_CHARS = 4096
#: number of mentions of arguments in other lines to skip
CONTEXT_LINES = 20


class Reader:
    """An incremental reader of a log, fed by lines or by chunks of bytes. `state` holds what is known so far.

    Memory stays bounded however long the log is: only evidence is kept of its text.
    """

    def __init__(self, book: LogBook) -> None:
        self._book, self._needles = book, book.needles
        self._cutter = LineCutter()
        self._announced = False
        self._stopping = False
        self._count = 0
        #: lines before this number are read whatever they hold
        self._window_end = 0
        self._begin()

    def feed(self, line: str) -> bool:
        """Read one line, without its end. Return True if another start begins with it; the state of the previous start is then
        dropped."""
        before = self.state
        raw = line.encode(errors="replace")[:LINE_BYTES]
        if raw and not self._needles.is_noise(raw):
            self._count += 1
            if self._needles.in_line(raw) or self._count < self._window_end:
                self._window_end = max(self._window_end, self._count + 1 + self._needles.window(raw))
                self._take(decode(raw))
        return before.known and self.state is not before

    def push(self, chunk: bytes) -> None:
        """Read a chunk of the log, cut anywhere."""
        self._lines(self._cutter.push(chunk))

    def finish(self) -> EngineState:
        """Return the state at the end, with the reason of a failure if the log holds one."""
        self._lines(self._cutter.rest())
        reported = self._last_words.verdict(self._count)
        if reported is not None:
            self.state.keep("failure", self._with_suspect(reported), reported.line)
            if not self.state.ready:
                self.state.keep("ready", False, reported.line)
        if self.state.known:
            for name, (value, why) in self._book.always.items():
                self.state.readings.setdefault(name, Reading(value, why))
        return self.state

    def _with_suspect(self, reported: Words) -> str:
        """Return the sentence of a failure; without a known cause, add the setting that may be the cause."""
        members = self.state.value("world_size") or self.state.value("intended_world_size")
        sentence = reported.alone if reported.alone and members == 1 else reported.sentence
        suspects = (
            sentence.format(value)
            for name, sentence in self._book.suspects
            if reported.unexplained and (value := self.state.value(name)) is not None
        )
        return " ".join((sentence, *suspects))

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _lines(self, block: bytes) -> None:
        before = self._count
        block = block[_last_starts(block, self._book) :]
        found, lines = self._needles.in_block(block, LINE_BYTES)
        if self._window_end > before + 1 or self._needles.opens_window(block):
            found = self._with_windows(found, lines)
        for at, line in found:
            self._count = before + at + 1
            if not self._needles.is_noise(line):
                self._take(decode(line))
        self._count = before + len(lines)

    def _with_windows(self, found: list[tuple[int, bytes]], lines: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the lines that were found, and those that follow an exception or a traceback."""
        before = self._count + 1
        wanted = set(range(min(max(0, self._window_end - before), len(lines))))
        for at, line in found:
            wanted.add(at)
            window = self._needles.window(line)
            if window:
                wanted.update(range(at + 1, min(at + 1 + window, len(lines))))
                self._window_end = max(self._window_end, before + at + 1 + window)
        return [(at, lines[at][:LINE_BYTES]) for at in sorted(wanted)]

    def _take(self, line: str) -> None:
        line = unwrapped(line)
        if not self._book.uncut or self._book.uncut not in line:
            line = line[:LINE_CHARS]
        self._starts(line)
        self._stage(line)
        self._settings(line)
        if self._stopping:
            return
        self._last_words.feed(line, self._count, ready=self.state.ready)
        stops = self._book.stopping + (self._book.stopping_when_ready if self.state.ready else ())
        if any(row.match(line) for row in stops):
            self._stopping = True
            self.state.keep("stopped", True, line)

    # -- starts and stages -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.state = EngineState(also=self._book.also)
        book = self._book
        exceptions = Exceptions(book.prefix) if book.tracebacks else None
        self._last_words = LastWords(book.failures, book.harmless, exceptions, book.consequences, book.front)
        self._stopping = False
        self._began: dict[str, datetime] = {}
        self._clock: datetime | None = None
        self._spans: dict[str, datetime | None] = {}

    def _starts(self, line: str) -> None:
        """Begin a new state if a line begins a start: a banner, or the arguments if no banner came before them."""
        book = self._book
        announces = any(banner.match(line) for banner in book.banners)
        asks = book.arguments.match(line)
        refusals = book.refusals + (book.refused if self.state.stage else ())
        if announces or (asks and not self._announced) or any(row.match(line) for row in refusals):
            self._begin()
        if announces or asks:
            self._announced = announces

    def _stage(self, line: str) -> None:
        now = self._tell_time(line)
        book = self._book
        reached = book.stage_names.index(self.state.stage) if self.state.stage else -1
        for at, (name, beginnings) in enumerate(book.stages):
            if at > reached and any(beginning.match(line) for beginning in beginnings):
                self._enter(name, now)
                if name == book.stage_names[-1]:
                    self.state.keep("ready", True, line)
                    self._since_start("ready_s", line)
        shards = book.shards.match(line) if book.shards else None
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
        """Return the time of a line, or of the last line with a time."""
        self._clock = clock(line, self._book.clock) or self._clock
        return self._clock

    def _since_start(self, name: str, line: str) -> None:
        began = self._began.get(self._book.stage_names[0])
        if began is not None and self._clock is not None:
            self.state.keep(name, seconds_between(began, self._clock), line)

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _settings(self, line: str) -> None:
        book = self._book
        if book.hook(self.state, line):
            return
        for name, row in book.values:
            found = row.match(line)
            if found:
                value = book.types.get(name, str)(found.group(1))
                if value is not None and name in book.summed:
                    value = round(value + (self.state.value(name) or 0), 3)
                self.state.keep(name, value, line)
        for kind, row in book.kernels:
            found = row.match(line)
            if found:
                self.state.keep_kernel(kind, found.group(1), line)
        for name, row, value in book.fixed:
            if row.match(line):
                self.state.keep(name, value, line)
        self._span(line)
        for row in (*book.unmet, *book.warnings):
            if row.match(line):
                self._warn(row, line)

    def _span(self, line: str) -> None:
        for name, begins, ends in self._book.spans:
            if begins.match(line):
                self._spans[name] = clock(line, self._book.clock)
            elif ends.match(line) and (began := self._spans.get(name)) and self._clock:
                self.state.keep(name, seconds_between(began, self._clock), line)

    def _warn(self, row: Line, line: str) -> None:
        """Keep each kind of warning once, since some come with every request; different groups of the pattern make different
        kinds."""
        found = row.match(line)
        kept = (row.match(warning) for warning in self.state.warnings)
        if found and not any(match and match.groups() == found.groups() for match in kept):
            self.state.warnings.append(shortened(line))


def read(text: Text, book: LogBook) -> EngineState:
    """Return the state of an engine from a whole log.

    text: the log, or pieces of it in their order, or a file opened as bytes. Truncated, coloured and non-UTF-8 logs are accepted;
    nothing in a log raises.
    """
    reader = Reader(book)
    for chunk in chunks_of(text):
        reader.push(chunk)
    return reader.finish()


def message(line: str, book: LogBook) -> str:
    """Return a line without its prefix (source, time and place)."""
    return book.prefix.sub("", line, count=1)


def _last_starts(block: bytes, book: LogBook) -> int:
    """Return the offset of the line with the last but one mention of arguments; the last start begins after it."""
    needle, at, seen = book.arguments.needle.encode(), len(block), 0
    for _ in range(2 * CONTEXT_LINES):
        at = block.rfind(needle, 0, at)
        if at < 0:
            return 0
        begin = block.rfind(b"\n", 0, at) + 1
        line = block[begin : block.find(b"\n", at)]
        seen += len(line) <= LINE_BYTES and not book.needles.is_noise(line)
        if seen == 2:
            return begin
    return 0
