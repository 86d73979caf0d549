"""The runner's entry point, which reads the laptop's request from standard input and writes events to standard output.

request.py lists the requests. Only the modules that a request needs are imported: `status`, which is sent to many hosts at once,
needs half the imports of a run.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, build_error_recap, encode_lines
from sparkwright.runner import request as requests
from sparkwright.trust import private
from sparkwright.trust.redact import Redactor


def main() -> int:
    """Answer a request. Returns 0; the outcome of the request is in the recap."""
    try:
        request = requests.read(sys.stdin.buffer)
    except Refused as refusal:
        _write_refusal({"secrets": {}}, refusal)
        return 0
    try:
        _write_events(_dispatch(request), request)
    except SparkwrightError as error:
        _write_refusal(request, error)
    except OSError as error:
        message = f"run not started: {StateFolder.in_home(Machine.from_environment().home).path}: {error.strerror}."
        _write_refusal(request, SparkwrightError(message, fix="On the host: `df -h ~`."))
    except Exception as error:
        traceback.print_exc()
        message = f"internal error on the host: {type(error).__name__}: {error}."
        _write_refusal(request, SparkwrightError(message, fix="Please report it."))
    return 0


def _dispatch(request: dict[str, Any]) -> Iterator[Event]:
    os.umask(os.umask(0o022) | 0o022)  # no other user may write to a run's files
    os.environ.update(request["env"])
    if request["secrets"]:
        from sparkwright.trust.secret_names import PROXY_VARIABLES

        os.environ.update({name: value for name, value in request["secrets"].items() if name in PROXY_VARIABLES})
    os.environ["LC_ALL"] = "C"
    machine = Machine.from_environment()
    state = StateFolder.in_home(machine.home)
    state.restrict_access()
    state.refuse_newer_format()
    private.restrict(machine.home / ".local/share/sparkwright")  # the runtime of this process
    module, _, name = requests.REQUEST_KINDS[request["verb"]].function_path.rpartition(".")
    handler: Callable[[dict[str, Any], Machine, StateFolder], Iterator[Event]]
    handler = getattr(importlib.import_module(f"sparkwright.runner.{module}"), name)
    return handler(request, machine, state.for_server(request["server"]))


def _write_events(events: Iterable[Event], request: dict[str, Any]) -> None:
    """Write events to the laptop, with secrets masked. The run continues if the laptop has disconnected."""
    output, redactor = sys.stdout.buffer, Redactor(request["secrets"].values())
    try:
        for row in events:
            output.writelines(encode_lines(row, redactor))
            output.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _write_refusal(request: dict[str, Any], error: SparkwrightError) -> None:
    host = str(request.get("plan", {}).get("host", ""))
    _write_events([build_error_recap(host, error, msg=f"{error.message} {error.fix}".strip())], request)


if __name__ == "__main__":
    # Docker's SDK would import an installed paramiko, for ssh:// addresses, which takes half of its import time
    sys.modules["paramiko"] = None  # type: ignore[assignment]
    sys.exit(main())
