"""The runner of a local host and of the sandbox, in children of one process that has imported it: half of the processor time of a
deploy in the sandbox is the imports of its runners.

Every command that `tests/commands.py` runs has its runners here, `Desk.start`, the API and the MCP server have those of a user. One
whose environment changes what Python does is a new Python as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from sparkwright.ready import readable

WORDS = [sys.executable, "-P", "-m", "sparkwright.runner.main"]
SOURCE = str(Path(__file__).parent.parent / "src")
#: all modules of these packages, and what they import in functions
PACKAGES = ("sparkwright.engines.vllm", "sparkwright.modules", "sparkwright.runner.verbs")
BEFORE = (
    "docker",
    "huggingface_hub.errors",
    "huggingface_hub.file_download",
    "huggingface_hub.hf_api",
    "jinja2.sandbox",
    "psutil",
    "sparkwright.host.images.registry_http",
    "sparkwright.runner.main",
    "sparkwright.runner.play",
    "tenacity",
)
#: what changes nothing in a runner, which flushes what it says
NEUTRAL = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED"}
PR_SET_PDEATHSIG = 1


class Runner:
    """What `sparkwright.remote.local` needs of a subprocess.Popen."""

    def __init__(self, address: str, env: Mapping[str, str]) -> None:
        (given, to), (out, said), (err, told) = os.pipe(), os.pipe(), os.pipe()
        here = os.open(".", os.O_PATH)
        self.stdin, self.stdout, self.stderr = os.fdopen(to, "wb"), os.fdopen(out, "rb"), os.fdopen(err, "rb")
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(address)
        asked = {"env": dict(env), "umask": _umask()}
        socket.send_fds(self._line, [b"\n"], [given, said, told, here])
        self._line.sendall(json.dumps(asked).encode() + b"\n")
        for descriptor in (given, said, told, here):
            os.close(descriptor)
        self._answers = self._line.makefile("rb")
        self.pid = int(self._answers.readline())

    def wait(self) -> int:
        """Its exit code, as soon as it has ended."""
        if self.returncode is None:
            self.returncode = int(self._answers.readline())
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.wait() if self.returncode is not None or readable([self._line]) else None

    def terminate(self) -> None:
        """End it, if it has not ended yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def _umask() -> int:
    """As the system has it: asking Python would change it for other threads meanwhile."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), 8)


def instead(address: str) -> Any:
    """Stands for the module `subprocess` in `sparkwright.remote.local`."""

    def popen(words: Sequence[str], *, env: Mapping[str, str], **given: Any) -> Any:
        assert list(words) == WORDS, words
        changed = {name for name in env if name.startswith("PYTHON")} - NEUTRAL
        if changed or env.get("PYTHONPATH", SOURCE) != SOURCE:
            return subprocess.Popen(words, env=env, **given)
        return Runner(address, env)

    return SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)


def started() -> str:
    """Start the process that has it all, beside this one and as long as this one. Returns where it listens."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # a name that nobody else has, without a file
    listener.listen(64)
    address = listener.getsockname()
    if not os.fork():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _serve(listener)
    listener.close()
    found: str = address
    return found


def _serve(listener: socket.socket) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the exit codes of commands go there
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for those that wait for a runner
    line, _ = listener.accept()  # tests that need no runner do not import its modules
    sys.modules["paramiko"] = None  # type: ignore[assignment]  # as the runner itself has it
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in BEFORE:
        importlib.import_module(name)
    gc.freeze()
    while True:
        if not os.fork():
            listener.close()
            _answer(line)
        line.close()
        line, _ = listener.accept()


def _answer(line: socket.socket) -> NoReturn:
    """Start a runner, tell its pid, wait, tell its exit code."""
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, descriptors, _, _ = socket.recv_fds(line, 1, 4)
        with line.makefile("rb") as lines:
            asked = json.loads(lines.readline())
        child = os.fork()
        if not child:
            line.close()
            _become(asked, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        line.sendall(b"%d\n" % child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        line.sendall(b"%d\n" % code)
    except BrokenPipeError:  # a command that was killed waits for nothing
        pass
    finally:
        os._exit(code & 0xFF)


def _become(asked: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """The runner itself."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        *pipes, here = descriptors
        os.fchdir(here)
        for number, descriptor in enumerate(pipes):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.umask(asked["umask"])
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        from sparkwright.runner.main import main

        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
