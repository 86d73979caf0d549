"""The runtime: sparkwright's host side with its wheels, for one processor and Python version, named by its content hash.

It is built once on the laptop, cached there, and uploaded only if the host does not have it. The host needs neither internet
access nor root for it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkwright import host_side, visible
from sparkwright.errors import Failed, Refused
from sparkwright.protocol.events import Event, event
from sparkwright.shell import join
from sparkwright.trust.names import MACHINE, PYTHON_PATH, PYTHON_VERSION, inside, matched
from sparkwright.visible import one_line

if TYPE_CHECKING:
    import tarfile

    from paramiko.channel import Channel


#: processors for which the runtime's wheels exist, as uname prints them
MACHINES = ("aarch64", "x86_64")
#: files in a wheel's .data folder that are installed with its packages (PEP 427); scripts, headers and data are left out
_BESIDE = re.compile(r"(?<![^/])[^/]{1,255}\.data/(?:purelib|platlib)/(.+)")
#: folders of wheels that a host never imports
_LEFT_OUT = {"tests", "test", "bin", "__pycache__"}


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Return the runtime's name: a hash of the sources and of the requirements, which include the wheels' hashes."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + host_side.content_hash().encode()).hexdigest()[:20]


def archive(python: str, machine: str, progress: Progress = lambda done, total, name: None) -> Path:
    """Return the runtime for a Python ("3.12") and processor ("aarch64") as a .tar.gz in the laptop's cache.

    It is built if it is missing or damaged. Raises Failed if a wheel is not available, or if a name that came from a host is
    invalid.

    Args:
        progress: see `fetched`.
    """
    made_for = f"{matched(PYTHON_VERSION, python, 'the Python')}-{matched(MACHINE, machine, 'the processor')}"
    path = inside(host_side.cache() / "runtime", f"{content_hash()}-{made_for}.tar.gz")
    if not _as_built(path):
        parts = fetched(python, machine, progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
            _pack(parts, f"{made_for}\n", temporary)
        _seal(path).write_text(hashlib.sha256(Path(temporary.name).read_bytes()).hexdigest())
        Path(temporary.name).replace(path)
    return path


def _as_built(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _seal(path).read_text()
    except OSError:
        return False


def _seal(path: Path) -> Path:
    """Return the path of the file that holds the archive's sha256."""
    return path.with_name(f"{path.name}.sha256")


def _pack(parts: list[Path], tag: str, out: Any) -> None:
    """Pack everything into a reproducible archive, starting with the manifest of sizes and SHA-256 hashes."""
    import gzip
    import tarfile

    files = {f"lib/{name}": data for wheel in parts for name, data in _files(wheel)}
    files |= {f"lib/sparkwright/{name}": data for name, data in host_side.sources()}
    files["tag"] = tag.encode()
    manifest = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        for name, data in files.items():
            _add(tar, name, data)


def _files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files that a wheel installs."""
    import zipfile

    with zipfile.ZipFile(wheel) as packed:
        for name in sorted(packed.namelist()):
            inside = _BESIDE.fullmatch(name)
            target = inside[1] if inside else name
            folders = target.split("/")[:-1]
            if name.endswith("/") or _LEFT_OUT & set(folders) or (folders and folders[0].endswith(".data")):
                continue
            yield target, packed.read(name)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    import tarfile

    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


REQUIREMENTS = Path(__file__).with_name("runtime-requirements.txt")
#: Python versions of `make runtime-lock`, for each of MACHINES; a Spark is aarch64 with Python 3.12 and glibc 2.39
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: manylinux tags that the wheels of the requirements may have
MANYLINUX = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
#: messages of pip and its libraries when no index answers
_NOBODY = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Temporary failure in name"
)

Progress = Callable[[int, int, str], None]


class Pin(NamedTuple):
    """A pinned requirement: the version and the sha256 of every acceptable wheel."""

    version: str
    hashes: frozenset[str]


def fetched(python: str, machine: str, progress: Progress = lambda done, total, name: None) -> list[Path]:
    """Return all wheels for a Python ("3.12") and processor ("aarch64") from the laptop's cache, verified by their hashes.

    Missing or damaged wheels are downloaded. Raises Failed if a wheel is not available, or if the index offers a different one.

    Args:
        progress: called with the number done, the total, and the next name.
    """
    if python not in PYTHONS or machine not in MACHINES:
        known = f"there is one for {', '.join(MACHINES)}; Python {', '.join(PYTHONS)}"
        raise Failed(f"there is no runtime for {visible.name(machine)}, Python {visible.name(python)}: {known}.")
    folder = _folder(python, machine)
    found = _complete(folder)
    missing = {name: pin for name, pin in locked().items() if name not in found}
    if missing:
        try:
            _download(missing, folder, python, machine, progress)
        except OSError as error:
            raise Failed(f"the runtime's wheels can't be kept: {error.strerror}.", where=str(folder)) from None
        found = _complete(folder)
    lost = sorted(set(locked()) - set(found))
    if lost:
        raise Failed(f"pip fetched no wheel for {', '.join(lost)}.", where=str(folder))
    return [found[name] for name in sorted(found)]


def here(python: str, machine: str) -> bool:
    """Return True if all wheels are in the laptop's cache and complete."""
    return set(_complete(_folder(python, machine))) == set(locked())


@functools.lru_cache(maxsize=4)
def locked(text: str = "") -> dict[str, Pin]:
    """Return the pinned requirements by package name."""
    text = text or REQUIREMENTS.read_text()
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            pin, *hashes = line.split()
            name, _, version = pin.partition("==")
            pins[name] = Pin(version, frozenset(item.removeprefix("--hash=sha256:") for item in hashes))
    return pins


def written(name: str, version: str, hashes: Iterable[str]) -> str:
    """Return a line of the requirements file in pip's format."""
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{item}" for item in sorted(hashes))]) + "\n"


def platform_words(machine: str, python: str) -> list[str]:
    """Return pip's options for another platform than this machine's."""
    tags = [*(f"manylinux_{tag}_{machine}" for tag in MANYLINUX), f"manylinux2014_{machine}"]
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    return [*options, *(f"--platform={tag}" for tag in tags)]


def _folder(python: str, machine: str) -> Path:
    return host_side.cache() / "runtime" / "wheels" / f"{python}-{machine}"


def _complete(folder: Path) -> dict[str, Path]:
    """Return the wheels in a folder that match the requirements, by package name."""
    by_hash = {digest: name for name, pin in locked().items() for digest in pin.hashes}
    found = {}
    for path in sorted(folder.glob("*.whl")):
        name = by_hash.get(hashlib.sha256(path.read_bytes()).hexdigest())
        if name:
            found[name] = path
    return found


def _download(missing: dict[str, Pin], folder: Path, python: str, machine: str, progress: Progress) -> None:
    """Download with pip to a temporary folder and move complete files over, so that an interruption leaves no partial file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        lines = Path(temporary) / "requirements.txt"
        lines.write_text("".join(written(name, *pin) for name, pin in missing.items()))
        # -P: the current folder may hold an untrusted project
        argv = [sys.executable, "-P", "-m", "pip", "download", "--require-hashes", "--no-deps"]
        argv += ["--disable-pip-version-check", "--retries=2", "--progress-bar=off"]
        argv += ["--dest", temporary, "--requirement", str(lines)]
        answer = _reported([*argv, *platform_words(machine, python)], len(missing), progress)
        if answer:
            raise _refusal(answer, python, machine)
        for path in Path(temporary).glob("*.whl"):
            path.replace(folder / path.name)


def _reported(argv: list[str], total: int, progress: Progress) -> str:
    """Run pip and report its progress. Return its output if it failed, otherwise an empty text."""
    lines, done = [], 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip:
        for line in pip.stdout or ():
            lines.append(line)
            if line.startswith(("Collecting ", "Processing ")):  # from an index or from a folder
                progress(done, total, line.split()[1].rpartition("/")[2])
                done += 1
    if pip.returncode == 0:
        progress(total, total, "")
        return ""
    return "".join(lines) or "pip said nothing"


def _refusal(message: str, python: str, machine: str) -> Failed:
    what = f"the runtime for {machine}, Python {python}"
    command = join(["sparkwright", "runtime.fetch", "--machine", machine, "--python", python])
    if "DO NOT MATCH THE HASHES" in message:
        fix = f"The connection may be intercepted, or the index is broken: inspect it with `{command} --debug`."
        return Failed(f"{what} was not fetched: the package index offers a wheel that is not the pinned one.", fix=fix)
    if _NOBODY.search(message):
        message = f"{what} is not in this laptop's cache, and no package index can be reached."
        return Failed(message, fix=f"Run `{command}` once where there is internet.")
    lines = message.strip().splitlines()
    last = next((line for line in reversed(lines) if line.startswith("ERROR:")), "".join(lines[-1:]))
    return Failed(f"{what} can't be fetched: {one_line(last.removeprefix('ERROR:').strip(), at_most=300)}.")


UNPACK_S = 120.0
CHUNK_BYTES = 64 * 1024
TEXT_CHARACTERS = 300


def ship(
    run: Callable[[str], Channel],
    events: Callable[[Channel], Iterator[Event]],
    found: Interpreter,
    where: str,
) -> Iterator[Event]:
    """Upload the host's runtime, unpack it there, and yield the progress.

    Args:
        run: starts a command on the host.
        events: yields the events that a command prints.
        found: the host's Python and processor.
        where: the host's name.

    Raises:
        Refused: the host can't take it.
        TimeoutError: the host no longer reads.
    """
    yield event("note", task="", text=f"shipping the runtime for {found.machine}, Python {found.version}")
    data = archive(found.version, found.machine).read_bytes()
    channel = run(unpack(content_hash(), found.path))
    try:
        channel.settimeout(UNPACK_S)  # other writers to the disk may slow it down
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
    """Return the last output of a runtime that exists but did not start; empty if there is none.

    The command has to have exited.
    """
    lines = _errors(channel).splitlines()
    if NO_START not in lines:
        return ""
    answer = [line for line in lines[: lines.index(NO_START)] if line.strip()]
    return one_line(answer[-1], at_most=TEXT_CHARACTERS) if answer else "no output"


def last_words(channel: Channel, message: str) -> str:
    """Return the end of a command's output, preferring its errors."""
    text = _errors(channel).strip() or message.strip()
    return f"its last words: {one_line(text.splitlines()[-1][-200:])}" if text else "no output"


def _errors(channel: Channel) -> str:
    return channel.recv_stderr(CHUNK_BYTES).decode(errors="replace") if channel.recv_stderr_ready() else ""


def _sent(channel: Channel, data: bytes) -> Iterator[Event]:
    """Send the archive and yield the progress. Raises TimeoutError.

    A host that closes its input has given up, and reports the reason in its answer.
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


# The bootstrap of a host without sparkwright: a few lines of POSIX shell.
#
# It is a single line without exclamation marks, so that every login shell (bash, zsh, fish, csh) passes it to sh unchanged.

#: folder below the user's home on the host
BOOTSTRAP_FOLDER = ".local/share/sparkwright/runtime"
UNPACKER = Path(__file__).with_name("unpack.py")
#: printed to standard error after the last output of an existing runtime that did not start
NO_START = "sparkwright: the runtime did not start"

#: Runs the runtime, or reports the host's Python. $1 is the runtime's hash, $2 the kind of requests ("light", "plan" or
#: "engine"). Exit codes 76 and 77 mean that the runtime started (see boot.py) and reported any later error itself.
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

#: runs the unpacker, which is sent at the beginning of standard input
_UNPACK = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"


@dataclass(frozen=True)
class Interpreter:
    """A host's Python: its path, its version ("3.12") and the processor ("aarch64")."""

    path: str
    version: str
    machine: str


def interpreter(answer: Event, host: str) -> Interpreter:
    """Return the interpreter in a host's `runtime_missing` event, with each value validated for use in paths and commands.

    Raises Refused for a processor that sparkwright does not support, and Failed for an invalid value.
    """
    if answer["machine"] not in MACHINES:
        wrong = one_line(answer["machine"], at_most=80)
        raise Refused(f"its processor is '{wrong}'; sparkwright runs on {' and '.join(MACHINES)}.", where=host)
    path = matched(PYTHON_PATH, answer["path"], f"the path of Python that {host} gives")
    version = matched(PYTHON_VERSION, answer["python"], f"the Python that {host} gives")
    return Interpreter(path, version, answer["machine"])


def start(runtime: str, need: str) -> str:
    """Return the command line that starts the runtime with this hash, which reads a request from standard input.

    Args:
        need: kind of requests, whose modules it imports while waiting for the request; see boot.py.
    """
    return join(["exec", "env", "LC_ALL=C", "sh", "-c", _START, "sparkwright", runtime, need])


def unpack(runtime: str, python: str) -> str:
    """Return the command line that unpacks a runtime with this hash on the host.

    Its standard input is `unpacker()` followed by the archive.
    """
    length = len(unpacker())
    return join(["exec", "env", "LC_ALL=C", python, "-I", "-c", _UNPACK, length, BOOTSTRAP_FOLDER, runtime])


def unpacker() -> bytes:
    """Return the source of the unpacker, which the host's Python runs."""
    return UNPACKER.read_bytes()
