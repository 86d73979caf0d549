"""The upload of the runtime to a host over an existing connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paramiko.channel import Channel

from sparkwright.errors import Refused
from sparkwright.protocol.events import Event, event
from sparkwright.remote import runtime
from sparkwright.shell import join
from sparkwright.trust.names import PYTHON_PATH, PYTHON_VERSION, matched
from sparkwright.visible import one_line

UNPACK_S = 120.0
CHUNK_BYTES = 64 * 1024
TEXT_CHARACTERS = 300


def ship(
    run: Callable[[str], Channel],
    events: Callable[[Channel], Iterator[Event]],
    found: Interpreter,
    where: str,
) -> Iterator[Event]:
    """Upload the runtime for this host and unpack it there; yields the progress.

    Args:
        run: starts a command there.
        events: its answers.
        found: its Python and processor.
        where: its name.

    Raises:
        Refused: the host can't take it.
        TimeoutError: the host does not read any more.
    """
    yield event("note", task="", text=f"shipping the runtime for {found.machine}, Python {found.version}")
    data = runtime.archive(found.version, found.machine).read_bytes()
    channel = run(unpack(runtime.content_hash(), found.path))
    try:
        channel.settimeout(UNPACK_S)  # a disk that others write to may hold it up
        yield from _sent(channel, data)
        reply = list(events(channel))
        answer = next((row for row in reversed(reply) if row["event"] in ("shipped", "not_shipped")), None)
        if answer is None or answer["event"] != "shipped":
            why = answer["why"] if answer else last_words(channel, str(reply[-1].get("text", "")) if reply else "")
            raise Refused(
                f"the runtime can't be put on the host: {one_line(why, at_most=TEXT_CHARACTERS)}.",
                where=where,
                fix="It needs some 80 MB in a home folder that can be written to; on the host: `df -h ~`.",
            )
    finally:
        channel.close()


def no_start(channel: Channel) -> str:
    """Return the last output of a runtime that is there and did not start; empty if there is none. Its command has exited."""
    lines = _errors(channel).splitlines()
    if NO_START not in lines:
        return ""
    answer = [line for line in lines[: lines.index(NO_START)] if line.strip()]
    return one_line(answer[-1], at_most=TEXT_CHARACTERS) if answer else "no output"


def last_words(channel: Channel, message: str) -> str:
    """Return the end of a command's output, its errors first."""
    text = _errors(channel).strip() or message.strip()
    return f"its last words: {one_line(text.splitlines()[-1][-200:])}" if text else "no output"


def _errors(channel: Channel) -> str:
    return channel.recv_stderr(CHUNK_BYTES).decode(errors="replace") if channel.recv_stderr_ready() else ""


def _sent(channel: Channel, data: bytes) -> Iterator[Event]:
    """Send the archive and yield the progress. Raises TimeoutError.

    A host that closes its input has given up: its answer has the reason.
    """
    try:
        channel.sendall(unpacker())
        for start in range(0, len(data), CHUNK_BYTES):
            channel.sendall(data[start : start + CHUNK_BYTES])
            done = min(start + CHUNK_BYTES, len(data))
            about = {"task": "runtime", "text": "shipping the runtime", "unit": "bytes"}
            yield event("progress", done=done, total=len(data), **about)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except (OSError, EOFError):
        return


# The bootstrap of a host without sparkwright: a few words of POSIX shell.
#
# One line and no exclamation mark, so that every login shell (bash, zsh, fish, csh) passes it to sh unchanged.

#: below the user's home on the host
BOOTSTRAP_FOLDER = ".local/share/sparkwright/runtime"
UNPACKER = Path(__file__).with_name("unpack.py")
#: on standard error, after the last output of an existing runtime that did not start
NO_START = "sparkwright: the runtime did not start"

#: $1: the runtime's hash. $2: what the request needs ("light", "plan" or "engine"). Runs it, or reports the host's
#: Python. 76 and 77: the runtime did start (see boot.py), and any later error is already reported.
_START = (
    f'r="$HOME/{BOOTSTRAP_FOLDER}/$1"; p=; '
    'if [ -e "$r" ]; then { IFS= read -r p < "$r/python"; } 2>/dev/null; '
    'if [ -x "$p" ]; then "$p" -IS "$r/lib/sparkwright/runner/boot.py" "$r/tag" "$2"; c=$?; '
    "[ $c -eq 76 ] && exit 0; [ $c -eq 77 ] && exit 1; fi; "
    f'echo "{NO_START}" >&2; fi; '
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do "
    '"$p" -IS -c \'import sys,platform; sys.exit(1) if sys.version_info < (3,11) else print('
    '"\\n{\\"event\\": \\"runtime_missing\\", \\"path\\": \\"%s\\", \\"python\\": \\"%d.%d\\", \\"machine\\": \\"%s\\"}" % '
    "(sys.executable, sys.version_info[0], sys.version_info[1], platform.machine()))' 2>/dev/null && exit 0; done; "
    'echo; echo \'{"event": "no_python"}\''
)

#: the unpacker is the beginning of its own standard input
_UNPACK = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"


@dataclass(frozen=True)
class Interpreter:
    """The Python of a host: its path, its version ("3.12") and the processor ("aarch64")."""

    path: str
    version: str
    machine: str


def interpreter(answer: Event, host: str) -> Interpreter:
    """Return the interpreter in a host's `runtime_missing`, each value validated before it is part of a path or a command.

    Raises Refused for a processor that sparkwright does not support, Failed for an invalid value.
    """
    if answer["machine"] not in runtime.MACHINES:
        wrong = one_line(answer["machine"], at_most=80)
        raise Refused(f"its processor is '{wrong}'; sparkwright runs on {' and '.join(runtime.MACHINES)}.", where=host)
    path = matched(PYTHON_PATH, answer["path"], f"the path of Python that {host} gives")
    version = matched(PYTHON_VERSION, answer["python"], f"the Python that {host} gives")
    return Interpreter(path, version, answer["machine"])


def start(runtime: str, need: str) -> str:
    """Return the command line that starts the runtime of this hash, reading a request from standard input.

    need: the imports ahead, while it waits for the request: see boot.py.
    """
    return join(["exec", "env", "LC_ALL=C", "sh", "-c", _START, "sparkwright", runtime, need])


def unpack(runtime: str, python: str) -> str:
    """Return the command line that unpacks a runtime of this hash on the host.

    Its standard input is `unpacker()` and the archive.
    """
    length = len(unpacker())
    return join(["exec", "env", "LC_ALL=C", python, "-I", "-c", _UNPACK, length, BOOTSTRAP_FOLDER, runtime])


def unpacker() -> bytes:
    """Return the program that unpacks, for the host's Python."""
    return UNPACKER.read_bytes()
