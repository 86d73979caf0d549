"""Python exceptions in an engine's log: class, message and the lines that belong to them.

A traceback ends with the first line that is not indented, and that line names the exception, whatever its class is called
(`triton.runtime.errors.OutOfResources: ...`). Its reason may be on the lines below it: ptxas, ninja, pydantic and gated
repositories all write it there. The processes of an engine write into one log, so each is followed by its own tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: the line that begins a traceback, anywhere in a message
TRACEBACK = "Traceback (most recent call last)"
#: lines after such a line that may belong to it
WINDOWS: tuple[tuple[str, int], ...] = ((TRACEBACK, 200), (" ERROR ", 12), ("Error: ", 12), ("Exception: ", 12))

#: lines kept below an exception, and how many exceptions and processes are kept at most
DETAIL_LINES, EXCEPTIONS, PROCESSES = 8, 64, 32
DETAIL_CHARS = 200
#: "(EngineCore pid=16) " of vLLM, the innermost of several; SGLang's rank is in the prefix that the LogBook strips
PROCESS = re.compile(r"^(?:\(([^()]{1,80})\) ?){1,4}")
LEVEL = re.compile(r"\b(?:ERROR|CRITICAL) \d\d-\d\d ")
#: after a traceback any name is an exception's; elsewhere only a name that ends so, or that has a module and a message
ANY_NAME = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}([A-Za-z_]\w{0,199})(?:: ?(.*))?$")
CALLED_SO = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}(\w{0,200}(?:Error|Exception)): (.+)$")
WITH_MODULE = re.compile(r"^(?:[a-z_]\w{0,99}\.){1,20}([A-Z]\w{0,199}): (.+)$")
#: code in a frame whose traceback lost its beginning
QUOTED = re.compile(r"^ +raise \w")
#: between two tracebacks of a chain, the older first
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: lines below an exception that explain nothing
POINTLESS = re.compile(
    r"^(?:For further information visit|The above exception|Repro command|\^+$|~*\^+~*$|[-=*]{5,}$|\{\}$"
    r"|CUDA kernel errors might be|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|Search for `cudaError"
    r"|Device-side assert(?:ion)?s? (?:tracking|can be))"
)
#: from such a line on, an exception gives advice instead of a reason
ADVICE = ("Possible solutions", "Possible fixes", "You can suppress this exception", "Open an issue on GitHub")


@dataclass
class Raised:
    """An exception in a log."""

    name: str  # without its modules
    text: str  # its first line, after the name
    at: int  # the number of its line in the log
    line: str
    process: str  # "EngineCore pid=16", "" if the log does not tell
    logged: bool  # by the engine's logger, instead of printed by a process that ends with it
    prefixed: bool  # the line has the log's prefix, and then so do the lines below it
    traced: bool  # after a traceback
    detail: list[str] = field(default_factory=list)  # the lines below it

    @property
    def sentence(self) -> str:
        """The class, its message, and the lines below it."""
        text = re.split("|".join(ADVICE), self.text, maxsplit=1)[0]
        words = " ".join([f"{self.name}: {text}" if text or self.detail else self.name, *self.detail])
        return f"{' '.join(words.split()).rstrip('.: ')}."


@dataclass
class _Process:
    """The position in one process's log: inside a traceback, or below an exception."""

    in_traceback: bool = False
    current: Raised | None = None


class Exceptions:
    """A collector of the exceptions of a log, oldest first. Memory is bounded, however many there are.

    Args:
        prefix: the source, time and place before a message, as the engine's log writes them.
    """

    def __init__(self, prefix: re.Pattern[str]) -> None:
        self._prefix = prefix
        self._processes: dict[str, _Process] = {}
        self._raised: list[Raised] = []
        #: the last line was a frame of a traceback, or the code in it
        self.inside = False

    def feed(self, line: str, at: int) -> Raised | None:
        """Read a line; return the exception that it begins, if any."""
        tag = PROCESS.match(line)
        name = tag[1] if tag else ""
        bare = self._prefix.sub("", line, count=1)
        # the prefix holds the tag where the logger wrote the line
        message = PROCESS.sub("", bare, count=1) if bare == line else bare
        process = self._process(name)
        self.inside = False
        if TRACEBACK in message:
            process.in_traceback, process.current = True, None
            return None
        if QUOTED.match(message) or (process.in_traceback and (not message.strip() or message[0] in " |+")):
            self.inside = True
            return None
        prefixed = bare != line
        logged, traced = bool(LEVEL.search(line)), process.in_traceback
        if _awaits_words(process.current) and not traced:
            _add_detail(process, message, prefixed)
            return None
        raised = self._exception(message, process, Raised("", "", at, line, name, logged, prefixed, traced))
        if raised is None:
            _add_detail(process, message, prefixed)
        process.in_traceback = False
        return raised

    def near(self, at: int, lines: int) -> Iterator[Raised]:
        """Yield the exceptions within a number of lines, oldest first."""
        return (raised for raised in self._raised if abs(raised.at - at) <= lines)

    @property
    def last(self) -> Raised | None:
        """The newest exception."""
        return self._raised[-1] if self._raised else None

    def forget(self) -> None:
        """Drop all exceptions: the start survived them."""
        self._processes.clear()
        self._raised.clear()

    def _process(self, name: str) -> _Process:
        if name not in self._processes and len(self._processes) >= PROCESSES:
            self._processes.clear()
        return self._processes.setdefault(name, _Process())

    def _exception(self, message: str, process: _Process, raised: Raised) -> Raised | None:
        patterns = (ANY_NAME,) if process.in_traceback else (CALLED_SO, WITH_MODULE)
        found = next((match for pattern in patterns if (match := pattern.match(message.strip()))), None)
        if found is None:
            return None
        raised.name, raised.text = found[1], (found[2] or "").strip()
        process.current = raised
        self._raised.append(raised)
        del self._raised[:-EXCEPTIONS]
        return raised


def _awaits_words(current: Raised | None) -> bool:
    """Return True if an exception's first line announces the next: "backend='inductor' raised:"."""
    return current is not None and current.text.endswith(":") and not current.detail


def _add_detail(process: _Process, message: str, prefixed: bool) -> None:
    """Append a line to the exception above it."""
    current, text = process.current, message.strip()
    if current is None or not text:
        return
    if prefixed != current.prefixed or text.startswith((*CHAINED, *ADVICE)) or len(current.detail) >= DETAIL_LINES:
        process.current = None
    elif not POINTLESS.match(text):
        current.detail.append(text[:DETAIL_CHARS])
