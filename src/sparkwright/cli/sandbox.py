"""The commands of the sandbox: inject a fault, show what it does, remove it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from sparkwright.cli.framework.command import command
from sparkwright.console.out import say_json
from sparkwright.errors import Refused

#: the fault that clears any other
NONE = "none"


@command(word="name", help={"name": "the fault; `none` clears it (default: list them)", "json": "one JSON object"})
def fault(name: str | None = None, json: bool = False) -> None:
    """Inject a fault into the sandbox, or clear it.

    It takes effect now and at the next start.
    """
    from sparkwright.sandbox import control

    if not name:
        return _show(control.FAULTS, max(map(len, control.FAULTS)) + 1, json=json)
    if name not in (*control.FAULTS, NONE):
        near = difflib.get_close_matches(name, [*control.FAULTS, NONE], n=1)
        hint = f"Did you mean `{near[0]}`?" if near else "`invoke sandbox.fault` lists them."
        raise Refused(f"the sandbox knows no fault {name!r}.", fix=hint)
    folder, wanted = control.default_folder(), None if name == NONE else name
    control.up(folder)
    control.fault(folder, wanted)
    if json:
        say_json({"fault": wanted})
    else:
        print(f"sandbox: {wanted}: {control.FAULTS[wanted]}" if wanted else "sandbox: nothing is broken.")
    return None


@command()
def down() -> None:
    """Remove the sandbox: processes, host, containers."""
    from sparkwright.sandbox import control

    control.down(control.default_folder())
    print("sandbox: removed.")


@command(help={"json": "one JSON object"})
def status(json: bool = False) -> None:
    """Show the sandbox: containers, models, memory, fault."""
    from sparkwright.sandbox import control

    _show(control.status(control.default_folder()), 12, json=json)


def _show(found: Mapping[str, Any], width: int, *, json: bool) -> None:
    if json:
        return say_json(found)
    for name, value in found.items():
        print(f"{name:<{width}} {value}")
    return None


TASKS = {"sandbox": [fault, down, status]}
