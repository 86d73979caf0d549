"""The commands: `invoke deploy --host spark1` and `sparkwright deploy --host spark1` are the same tasks."""

from __future__ import annotations

import contextlib
import io
import os
import sys

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # saves reading the metadata of every package

from sparkwright.cli.framework import start  # isort: skip - its hook is set before any library is imported

from invoke.collection import Collection

from sparkwright.cli import (
    bench,
    cluster,
    deploy,
    doctor,
    gateway,
    health,
    hosts,
    lint,
    lock,
    mcp,
    playbook,
    project,
    recipes,
    runs,
    sandbox,
    status,
    stores,
)
from sparkwright.cli.framework import program
from sparkwright.errors import Exit
from sparkwright.version import __version__

program.install()
TASK_MODULES = (
    deploy,
    runs,
    status,
    doctor,
    lint,
    lock,
    hosts,
    project,
    bench,
    health,
    stores,
    recipes,
    cluster,
    gateway,
    mcp,
    playbook,
    sandbox,
)
_tasks = [(group, tasks) for module in TASK_MODULES for group, tasks in module.TASKS.items()]
namespace = Collection(
    *(task for group, tasks in _tasks if not group for task in tasks),
    **{group: Collection(*tasks) for group, tasks in _tasks if group},
)
namespace.add_task(project.build_completion_command(namespace))


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed, so that no other file gets their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def main() -> None:
    """Run the installed command `sparkwright`."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for an ASCII terminal
    try:
        program.Sparkwright(name="sparkwright", binary="sparkwright", namespace=namespace, version=__version__).run()
        code = 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = int(Exit.INCONCLUSIVE)
    except KeyboardInterrupt:  # before a command starts or after it ends
        print(start.INTERRUPTED_MESSAGE, file=sys.stderr)
        code = int(Exit.INCONCLUSIVE)
    except OSError as error:  # Invoke reads ~/.invoke.yaml, and HOME can be a file
        print(f"{error.filename or 'standard output'}: {error.strerror}.", file=sys.stderr)
        code = 1
    except SystemExit as system_exit:
        code = system_exit.code if isinstance(system_exit.code, int) else int(system_exit.code is not None)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # skips the interpreter's shutdown, which takes a fifth of a short command's time
