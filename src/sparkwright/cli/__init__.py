"""The commands: `invoke deploy --host spark1` and `sparkwright deploy --host spark1` are the same tasks."""

from __future__ import annotations

import contextlib
import io
import os
import sys

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would read the metadata of every installed package

from sparkwright.cli import ctrl_c, quick  # the former before all that takes time to import

with quick.importing():
    from invoke.collection import Collection
    from invoke.program import Program

from sparkwright import __version__
from sparkwright.cli import (
    bench,
    client,
    command_line,
    deploy,
    diagnose,
    doctor,
    health,
    host,
    images,
    lint,
    lock,
    logs,
    model,
    models,
    ollama,
    project,
    records,
    runs,
    runtime,
    sandbox,
    status,
)

command_line.install()
namespace = Collection(
    *deploy.TASKS,
    *runs.TASKS,
    *records.TASKS,
    *logs.TASKS,
    *project.TASKS,
    *status.TASKS,
    *client.TASKS,
    *diagnose.TASKS,
    *doctor.TASKS,
    *lint.TASKS,
    *lock.TASKS,
    bench=bench.bench_collection(),
    docs=project.docs_collection(),
    health=health.health_collection(),
    host=host.host_collection(),
    images=images.images_collection(),
    model=model.model_collection(),
    models=models.models_collection(),
    ollama=ollama.ollama_collection(),
    runtime=Collection(*runtime.TASKS),
    sandbox=Collection(*sandbox.TASKS),
)


def main() -> None:
    """The installed command `sparkwright`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of ASCII only
    try:
        Program(name="sparkwright", binary="sparkwright", namespace=namespace, version=__version__).run()
        code = 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `sparkwright --help | head`
        code = 0
    except KeyboardInterrupt:  # before a command began, or after it ended
        print(ctrl_c.SENTENCE, file=sys.stderr)
        code = ctrl_c.CODE
    except OSError as error:  # Invoke reads ~/.invoke.yaml, and HOME can be a file
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        code = 1
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # nothing is left to do, and taking the interpreter apart is a fifth of a short command
