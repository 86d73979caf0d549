"""The real command line, in forked children of one process that has imported what commands need.

python -m tests.commands    reads one command per line, and prints its exit code

This takes a third of the time of a new Python. `sparkwright.cli` is imported by each child, because it reads the environment and
the arguments when it is imported.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

TOP = Path(__file__).parent.parent
#: the installed program
PROGRAM = Path(sys.executable).parent / "sparkwright"
TIMEOUT_S = 120.0
#: modules that most commands import
PRELOADED_MODULES = (
    "invoke.program",
    "sparkwright.app.connect",
    "sparkwright.app.queries.fleet_status",
    "sparkwright.app.runs.rollout",
    "sparkwright.app.runs.session",
    "sparkwright.console.events.lines",
    "sparkwright.console.status_table",
    "sparkwright.project.recipe.engine_settings",
    "sparkwright.remote.local",
)


def run(
    *words: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    program: str = "sparkwright",
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with the result of `subprocess.run`.

    env: its complete environment; by default that of this process. program: sparkwright, invoke or inv.
    Raises subprocess.TimeoutExpired.
    """
    server = _idle.pop() if _idle else _Server()
    answer = server.run(
        [str(word) for word in words], cwd, dict(os.environ if env is None else env), program, timeout_s
    )
    _idle.append(server)
    return answer


def run_process(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run any program in a new process, without input. env: additional variables."""
    return subprocess.run(
        words, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


class _Server:
    """A process that has imported the modules, and runs one command at a time."""

    def __init__(self) -> None:
        env = {"PYTHONPATH": f"{TOP / 'src'}{os.pathsep}{TOP}"}  # each command has its own environment
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.communicate)

    def run(
        self, words: list[str], cwd: Path, env: dict[str, str], program: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="output-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            options = {"program": program, "words": words, "cwd": str(cwd), "env": env, "timeout_s": timeout_s}
            options["umask"] = _current_umask()
            print(json.dumps({**options, "out": str(out), "err": str(err)}), file=self._process.stdin, flush=True)
            code = json.loads(self._process.stdout.readline())
            if code is None:
                raise subprocess.TimeoutExpired([program, *words], timeout_s, out.read_text(), err.read_text())
            return subprocess.CompletedProcess([program, *words], code, out.read_text(), err.read_text())


#: servers that run no command now; if there is none, another one is started
_idle: list[_Server] = []


def _current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the command, not this process
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        options = json.loads(line)
        child = os.fork()
        if not child:
            _run_in_child(options)
        print(json.dumps(_wait_for_exit(child, options["timeout_s"])), flush=True)


def _wait_for_exit(child: int, timeout_s: float) -> int | None:
    """Return the exit code; None if the child was killed because it took too long."""
    descriptor = os.pidfd_open(child)
    try:
        waiting = select.poll()  # unlike `select`, for any number of open files
        waiting.register(descriptor, select.POLLIN)
        in_time = bool(waiting.poll(timeout_s * 1000))
    finally:
        os.close(descriptor)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if in_time else None


def _run_in_child(options: dict[str, Any]) -> NoReturn:
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        write_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for path, flags, descriptor in (
            (os.devnull, os.O_RDONLY, 0),
            (options["out"], write_flags, 1),
            (options["err"], write_flags, 2),
        ):
            os.dup2(os.open(path, flags, 0o600), descriptor)
        os.chdir(options["cwd"])
        os.umask(options["umask"])
        os.environ.clear()
        os.environ.update(options["env"])
        sys.argv = [str(Path(sys.executable).with_name(options["program"])), *options["words"]]
        if options["program"] == "sparkwright":
            from sparkwright.cli import main
        else:
            from invoke.main import program

            main = program.run
        main()
        code = 0
    except SystemExit as system_exit:
        code = system_exit.code if isinstance(system_exit.code, int) else int(system_exit.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
