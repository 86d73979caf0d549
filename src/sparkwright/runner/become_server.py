"""The root side of `become`: runs one module after the other, as asked on standard input."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.modules import arguments, registry
from sparkwright.modules.base import Result
from sparkwright.runner import become
from sparkwright.runner.context import RunContext
from sparkwright.secret import Secret


def serve() -> None:
    """Answer requests until standard input ends."""
    start = json.loads(sys.stdin.buffer.readline())
    os.environ.update(start["env"])
    _write(become.READY)
    machine = Machine.here()
    secrets = {name: Secret(value) for name, value in start["secrets"].items()}
    state = StateFolder(Path(start["state"]))
    owner = state.path.stat() if state.path.exists() else None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        context = RunContext(
            machine=machine,
            state=state,
            run_id=start["run_id"],
            emit=lambda event: _write(json.dumps(event, default=str)),
            check=request["check"],
            facts=request["facts"],
            secrets=secrets,
            task=request["task"],
        )
        result = _run(request, context)
        if owner is not None:
            _give_back(state.path, owner.st_uid, owner.st_gid)
        _write(json.dumps(dataclasses.asdict(result), default=str))


def _run(request: dict[str, Any], context: RunContext) -> Result:
    try:
        kind = registry.load(request["module"])
        return kind().run(arguments.build(kind.Args, request["args"], module=request["module"]), context)
    except SparkwrightError as error:
        code = None if error.exit is Exit.FAILED else error.exit
        return Result(failed=True, msg=error.message, fix=error.fix, exit=code)
    except Exception as error:
        return Result(failed=True, msg=f"{request['module']}: {type(error).__name__}: {error}")


def _give_back(folder: Path, uid: int, gid: int) -> None:
    """What root wrote into the user's state folder is the user's."""
    for path in folder.rglob("*"):
        if path.lstat().st_uid != uid:
            os.lchown(path, uid, gid)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
