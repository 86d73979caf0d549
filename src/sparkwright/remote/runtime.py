"""The runtime: sparkwright's host side with its wheels, for one processor and Python version, named by its content hash.

It is built once on the laptop, cached there, and uploaded to hosts that lack it. It needs neither internet access nor root.
"""

from __future__ import annotations

import contextlib
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
from sparkwright.trust.names import MACHINE, PYTHON_PATH, PYTHON_VERSION, require_match, resolve_inside
from sparkwright.visible import one_line

if TYPE_CHECKING:
    import tarfile

    from paramiko.channel import Channel


#: processors for which the runtime's wheels exist, as uname prints them
MACHINES = ("aarch64", "x86_64")
#: files in a wheel's .data folder that are installed with its packages (PEP 427); scripts, headers and data are omitted
_DATA_FOLDER_FILE_PATTERN = re.compile(r"(?<![^/])[^/]{1,255}\.data/(?:purelib|platlib)/(.+)")
#: folders of wheels that a host never imports
_EXCLUDED_FOLDERS = {"tests", "test", "bin", "__pycache__"}
REQUIREMENTS_FILE = Path(__file__).with_name("runtime-requirements.txt")
#: Python versions of `make runtime-lock`, for each of MACHINES; a Spark is aarch64 with Python 3.12 and glibc 2.39
PYTHON_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: manylinux tags that the wheels of the requirements may have
MANYLINUX_TAGS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
#: messages of pip and its libraries when no package index can be reached
_NO_INDEX_PATTERN = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Temporary failure in name"
)
#: number of archives to keep in the laptop's cache for each Python and processor; each version of sparkwright builds one of 10 MB
MAX_ARCHIVES = 5
#: called with the number of wheels done, the total, and the name of the next wheel
Progress = Callable[[int, int, str], None]

#: time limit without progress while the host reads and unpacks the archive, in seconds; its disk may be busy
UNPACK_TIMEOUT_S = 120.0
CHUNK_BYTES = 64 * 1024
MAX_TEXT_CHARS = 300
#: folder below the user's home on the host
BOOTSTRAP_FOLDER = ".local/share/sparkwright/runtime"
UNPACKER_FILE = Path(__file__).with_name("unpack.py")
#: line on standard error that follows the output of an existing runtime that did not start
NO_START_MARK = "sparkwright: the runtime did not start"

#: Shell command that runs the runtime, or reports the host's Python if there is none. $1 is the runtime's hash, $2 the kind of
#: requests ("light", "plan" or "engine"). Exit codes 76 and 77 mean that the runtime started (see boot.py) and reported any later
#: error itself. It is a single line without exclamation marks, so that every login shell (bash, zsh, fish, csh) passes it to sh
#: unchanged.
_START_SCRIPT = (
    f'r="$HOME/{BOOTSTRAP_FOLDER}/$1"; p=; '
    'if [ -e "$r" ]; then { IFS= read -r p < "$r/python"; } 2>/dev/null; '
    'if [ -x "$p" ]; then "$p" -IS "$r/lib/sparkwright/runner/boot.py" "$r/tag" "$2"; c=$?; '
    "[ $c -eq 76 ] && exit 0; [ $c -eq 77 ] && exit 1; fi; "
    f'echo "{NO_START_MARK}" >&2; fi; '
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do "
    '"$p" -IS -c \'import sys,platform; sys.exit(1) if sys.version_info < (3,11) else print('
    '"\\n{\\"event\\": \\"runtime_missing\\", \\"path\\": \\"%s\\", \\"python\\": \\"%d.%d\\", \\"machine\\": \\"%s\\"}" % '
    "(sys.executable, sys.version_info[0], sys.version_info[1], platform.machine()))' 2>/dev/null && exit 0; done; "
    'echo; echo \'{"event": "no_python"}\''
)

#: runs the unpacker, whose source is the first part of standard input
_UNPACK_PROGRAM = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Return the runtime's name: a hash of the sources and of the requirements, which include the wheels' hashes."""
    return hashlib.sha256(REQUIREMENTS_FILE.read_bytes() + host_side.content_hash().encode()).hexdigest()[:20]


def ensure_archive(python_version: str, machine: str) -> Path:
    """Return the runtime for a Python ("3.12") and processor ("aarch64") as a .tar.gz in the laptop's cache.

    It is built if it is missing or damaged. Raises Failed if a wheel is not available, or if the Python or processor is invalid.
    """
    python_version = require_match(PYTHON_VERSION, python_version, "the Python")
    target = f"{python_version}-{require_match(MACHINE, machine, 'the processor')}"
    path = resolve_inside(host_side.cache_folder() / "runtime", f"{content_hash()}-{target}.tar.gz")
    if not _is_intact(path):
        wheels = fetch_wheels(python_version, machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary_file:
            _pack(wheels, f"{target}\n", temporary_file)
        _checksum_path(path).write_text(hashlib.sha256(Path(temporary_file.name).read_bytes()).hexdigest())
        Path(temporary_file.name).replace(path)
        _prune_archives(path.parent, target)
    return path


def _prune_archives(folder: Path, target: str) -> None:
    """Delete all but the newest archives for a Python and processor. A deleted one is built again when it is needed."""
    with contextlib.suppress(OSError):  # another process may prune at the same time
        archives = sorted(folder.glob(f"*-{target}.tar.gz"), key=lambda path: path.stat().st_mtime_ns)
        for archive in archives[:-MAX_ARCHIVES]:
            archive.unlink()
            _checksum_path(archive).unlink()


def _is_intact(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _checksum_path(path).read_text()
    except OSError:
        return False


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _pack(wheels: list[Path], tag: str, archive: Any) -> None:
    """Pack the wheels and sparkwright into a reproducible archive. Its first file is a manifest of sizes and SHA-256 hashes."""
    import gzip
    import tarfile

    files = {f"lib/{name}": data for wheel in wheels for name, data in _wheel_files(wheel)}
    files |= {f"lib/sparkwright/{name}": data for name, data in host_side.iter_sources()}
    files["tag"] = tag.encode()
    manifest = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    with (
        gzip.GzipFile(filename="", fileobj=archive, mode="wb", mtime=0, compresslevel=6) as gzip_file,
        tarfile.open(fileobj=gzip_file, mode="w") as tar,
    ):
        _add_file(tar, "manifest.json", json.dumps(manifest).encode())
        for name, data in files.items():
            _add_file(tar, name, data)


def _wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the target paths and contents of the files that a wheel installs."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            match = _DATA_FOLDER_FILE_PATTERN.fullmatch(name)
            target = match[1] if match else name
            folders = target.split("/")[:-1]
            if name.endswith("/") or _EXCLUDED_FOLDERS & set(folders) or (folders and folders[0].endswith(".data")):
                continue
            yield target, archive.read(name)


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    import tarfile

    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


class Pin(NamedTuple):
    """A pinned requirement: the version and the sha256 of every acceptable wheel."""

    version: str
    hashes: frozenset[str]


def fetch_wheels(python_version: str, machine: str, progress: Progress = lambda done, total, name: None) -> list[Path]:
    """Return all wheels for a Python ("3.12") and processor ("aarch64") from the laptop's cache, verified by their hashes.

    Missing or damaged wheels are downloaded. Raises Failed if a wheel is not available, or differs from the pinned one.
    """
    if python_version not in PYTHON_VERSIONS or machine not in MACHINES:
        platform = f"{visible.display_name(machine)}, Python {visible.display_name(python_version)}"
        supported = f"{', '.join(MACHINES)}; Python {', '.join(PYTHON_VERSIONS)}"
        raise Failed(f"there is no runtime for {platform}; supported: {supported}.")
    folder = _wheels_folder(python_version, machine)
    wheels = _complete_wheels(folder)
    missing = {name: pin for name, pin in pinned_requirements().items() if name not in wheels}
    if missing:
        try:
            _download(missing, folder, python_version, machine, progress)
        except OSError as error:
            raise Failed(f"cannot save the runtime's wheels: {error.strerror}.", where=str(folder)) from None
        wheels = _complete_wheels(folder)
    unavailable = sorted(set(pinned_requirements()) - set(wheels))
    if unavailable:
        raise Failed(f"pip downloaded no wheel for {', '.join(unavailable)}.", where=str(folder))
    return [wheels[name] for name in sorted(wheels)]


def is_cached(python_version: str, machine: str) -> bool:
    """Return True if all wheels are in the laptop's cache and complete."""
    return set(_complete_wheels(_wheels_folder(python_version, machine))) == set(pinned_requirements())


@functools.lru_cache(maxsize=4)
def pinned_requirements(text: str = "") -> dict[str, Pin]:
    """Return the pinned requirements by package name. text: content of a requirements file; empty for the runtime's."""
    text = text or REQUIREMENTS_FILE.read_text()
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *hashes = line.split()
            name, _, version = requirement.partition("==")
            pins[name] = Pin(version, frozenset(option.removeprefix("--hash=sha256:") for option in hashes))
    return pins


def format_pin(name: str, version: str, hashes: Iterable[str]) -> str:
    """Return a line of the requirements file in pip's format."""
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"


def platform_options(machine: str, python_version: str) -> list[str]:
    """Return pip's options for downloading wheels for a processor and Python version."""
    tags = [*(f"manylinux_{tag}_{machine}" for tag in MANYLINUX_TAGS), f"manylinux2014_{machine}"]
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python_version}"]
    return [*options, *(f"--platform={tag}" for tag in tags)]


def _wheels_folder(python_version: str, machine: str) -> Path:
    return host_side.cache_folder() / "runtime" / "wheels" / f"{python_version}-{machine}"


def _complete_wheels(folder: Path) -> dict[str, Path]:
    """Return the wheels in a folder that match the requirements, by package name."""
    name_by_hash = {digest: name for name, pin in pinned_requirements().items() for digest in pin.hashes}
    wheels = {}
    for path in sorted(folder.glob("*.whl")):
        name = name_by_hash.get(hashlib.sha256(path.read_bytes()).hexdigest())
        if name:
            wheels[name] = path
    return wheels


def _download(missing: dict[str, Pin], folder: Path, python_version: str, machine: str, progress: Progress) -> None:
    """Download wheels with pip to a temporary folder and then move them, so that an interruption leaves no partial file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary_folder:
        requirements = Path(temporary_folder) / "requirements.txt"
        requirements.write_text("".join(format_pin(name, *pin) for name, pin in missing.items()))
        # -P: don't import from the current folder, which may be an untrusted project
        argv = [sys.executable, "-P", "-m", "pip", "download", "--require-hashes", "--no-deps"]
        argv += ["--disable-pip-version-check", "--retries=2", "--progress-bar=off"]
        argv += ["--dest", temporary_folder, "--requirement", str(requirements)]
        error_output = _run_pip([*argv, *platform_options(machine, python_version)], len(missing), progress)
        if error_output:
            raise _download_error(error_output, python_version, machine)
        for path in Path(temporary_folder).glob("*.whl"):
            path.replace(folder / path.name)


def _run_pip(argv: list[str], wheel_count: int, progress: Progress) -> str:
    """Run pip and report its progress. Returns pip's output if it failed; empty if it succeeded."""
    output, done_count = [], 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip:
        for line in pip.stdout or ():
            output.append(line)
            if line.startswith(("Collecting ", "Processing ")):  # from an index or from a folder
                progress(done_count, wheel_count, line.split()[1].rpartition("/")[2])
                done_count += 1
    if pip.returncode == 0:
        progress(wheel_count, wheel_count, "")
        return ""
    return "".join(output) or "no output from pip"


def _download_error(output: str, python_version: str, machine: str) -> Failed:
    subject = f"the runtime for {machine}, Python {python_version}"
    command = join(["sparkwright", "runtime.fetch", "--machine", machine, "--python", python_version])
    if "DO NOT MATCH THE HASHES" in output:
        message = f"cannot download {subject}: the package index offers a wheel that differs from the pinned one."
        fix = f"The connection may be intercepted, or the index is broken: inspect it with `{command} --debug`."
        return Failed(message, fix=fix)
    if _NO_INDEX_PATTERN.search(output):
        message = f"{subject} is not in this laptop's cache, and no package index can be reached."
        return Failed(message, fix=f"Run `{command}` once with internet access.")
    lines = output.strip().splitlines()
    reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), "".join(lines[-1:]))
    return Failed(f"cannot download {subject}: {one_line(reason.removeprefix('ERROR:').strip(), max_chars=300)}.")


def upload_runtime(
    run: Callable[[str], Channel],
    read_events: Callable[[Channel], Iterator[Event]],
    interpreter: Interpreter,
    host_name: str,
) -> Iterator[Event]:
    """Upload a runtime to a host, unpack it there, and yield the progress.

    Args:
        run: starts a command on the host.
        read_events: yields the events that a command prints.
        host_name: the host's name, for errors.

    Raises:
        Refused: the host could not unpack it.
        TimeoutError: the host stopped reading.
    """
    note = f"uploading the runtime for {interpreter.machine}, Python {interpreter.version}"
    yield event("note", task="", text=note, detail=False)
    data = ensure_archive(interpreter.version, interpreter.machine).read_bytes()
    channel = run(unpack_command(content_hash(), interpreter.path))
    try:
        channel.settimeout(UNPACK_TIMEOUT_S)
        yield from _send_archive(channel, data)
        rows = list(read_events(channel))
        outcome = next((row for row in reversed(rows) if row["event"] in ("shipped", "not_shipped")), None)
        if outcome is None or outcome["event"] != "shipped":
            reason = outcome["why"] if outcome else last_output(channel, str(rows[-1].get("text", "")) if rows else "")
            raise Refused(
                f"cannot install the runtime on the host: {one_line(reason, max_chars=MAX_TEXT_CHARS)}.",
                where=host_name,
                fix="It needs about 80 MB in a writable home folder; check with `df -h ~` on the host.",
            )
    finally:
        channel.close()


def failed_start_output(channel: Channel) -> str:
    """Return the last line that a runtime printed before it failed to start; empty if none failed to start.

    The command on the channel must have exited.
    """
    lines = _read_errors(channel).splitlines()
    if NO_START_MARK not in lines:
        return ""
    nonempty_lines = [line for line in lines[: lines.index(NO_START_MARK)] if line.strip()]
    return one_line(nonempty_lines[-1], max_chars=MAX_TEXT_CHARS) if nonempty_lines else "no output"


def last_output(channel: Channel, message: str) -> str:
    """Return the last line of a command's standard error as a clause. message: used if standard error is empty."""
    text = _read_errors(channel).strip() or message.strip()
    return f"last output: {one_line(text.splitlines()[-1][-200:])}" if text else "no output"


def _read_errors(channel: Channel) -> str:
    return channel.recv_stderr(CHUNK_BYTES).decode(errors="replace") if channel.recv_stderr_ready() else ""


def _send_archive(channel: Channel, data: bytes) -> Iterator[Event]:
    """Send the archive and yield the progress. Raises TimeoutError.

    A host that closes its input early reports the reason in its events.
    """
    try:
        channel.sendall(unpacker_source())
        for start in range(0, len(data), CHUNK_BYTES):
            channel.sendall(data[start : start + CHUNK_BYTES])
            done = min(start + CHUNK_BYTES, len(data))
            text = "uploading the runtime"
            yield event("progress", task="runtime", done=done, total=len(data), unit="bytes", text=text)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except (OSError, EOFError):
        return


@dataclass(frozen=True)
class Interpreter:
    """A host's Python: its path, its version ("3.12") and the processor ("aarch64")."""

    path: str
    version: str
    machine: str


def parse_interpreter(answer: Event, host: str) -> Interpreter:
    """Return the interpreter in a host's `runtime_missing` event, validated for use in paths and commands.

    Raises Refused for a processor that sparkwright does not support, and Failed for an invalid value.
    """
    if answer["machine"] not in MACHINES:
        machine = one_line(answer["machine"], max_chars=80)
        raise Refused(f"its processor is '{machine}'; sparkwright runs on {' and '.join(MACHINES)}.", where=host)
    path = require_match(PYTHON_PATH, answer["path"], f"the path of Python that {host} reports")
    version = require_match(PYTHON_VERSION, answer["python"], f"the version of Python that {host} reports")
    return Interpreter(path, version, answer["machine"])


def start_command(runtime_hash: str, request_kind: str) -> str:
    """Return the command line that starts a runtime, which reads a request from standard input.

    Args:
        runtime_hash: content hash of the runtime.
        request_kind: kind of the requests that will follow; their modules are imported in advance (see boot.py).
    """
    return join(["exec", "env", "LC_ALL=C", "sh", "-c", _START_SCRIPT, "sparkwright", runtime_hash, request_kind])


def unpack_command(runtime_hash: str, python: str) -> str:
    """Return the command line that unpacks a runtime. Its standard input is `unpacker_source()` followed by the archive.

    Args:
        runtime_hash: content hash of the runtime.
        python: path of the host's Python.
    """
    source_bytes = len(unpacker_source())
    return join(
        ["exec", "env", "LC_ALL=C", python, "-I", "-c", _UNPACK_PROGRAM, source_bytes, BOOTSTRAP_FOLDER, runtime_hash]
    )


def unpacker_source() -> bytes:
    """Return the source of unpack.py."""
    return UNPACKER_FILE.read_bytes()
