"""The commands of the sandbox: inject a fault, show what it does, remove it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from sparkwright.cli.framework.command import command
from sparkwright.console.out import say_json
from sparkwright.errors import Refused

#: the fault that clears any other
NONE = "none"


@command(
    word="name",
    help={"name": "the fault; `none` clears it (default: list them)", "json": "one JSON object"},
)
def fault(context: object, name: str | None = None, json: bool = False, debug: bool = False) -> int:
    """Inject a fault into the sandbox, or clear it.

    It takes effect now and at the next start.
    """
    from sparkwright.sandbox import control

    if not name:
        _list(control.FAULTS, json=json)
        return 0
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
    return 0


def _list(faults: Mapping[str, str], *, json: bool) -> None:
    if json:
        return say_json(faults)
    width = max(map(len, faults))
    for name, what in faults.items():
        print(f"{name:<{width}}  {what}")
    return None


@command()
def down(context: object, debug: bool = False) -> int:
    """Remove the sandbox: processes, host, containers."""
    from sparkwright.sandbox import control

    control.down(control.default_folder())
    print("sandbox: removed.")
    return 0


@command(help={"json": "one JSON object"})
def status(context: object, json: bool = False, debug: bool = False) -> int:
    """Show the sandbox: containers, models, memory, fault."""
    from sparkwright.sandbox import control

    found = control.status(control.default_folder())
    if json:
        say_json(found)
        return 0
    for name, value in found.items():
        print(f"{name:<12} {value}")
    return 0


TASKS = {"sandbox": [fault, down, status]}
