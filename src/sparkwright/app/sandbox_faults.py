"""`sandbox.fault`: what can be broken in the sandbox, and breaking it."""

from __future__ import annotations

import difflib

from sparkwright.console.out import say_json
from sparkwright.errors import Refused
from sparkwright.sandbox import control

NONE = "none"


def listed(*, json: bool) -> None:
    """Every fault, with what it does."""
    if json:
        say_json(control.FAULTS)
        return
    width = max(map(len, control.FAULTS))
    for name, what in control.FAULTS.items():
        print(f"{name:<{width}}  {what}")


def inject(name: str, *, json: bool) -> None:
    """Break one thing, or with `none` nothing. Raises Refused for an unknown one."""
    if name != NONE and name not in control.FAULTS:
        near = difflib.get_close_matches(name, [*control.FAULTS, NONE], n=1)
        hint = f"Did you mean `{near[0]}`?" if near else "`invoke sandbox.fault` lists them."
        raise Refused(f"the sandbox knows no fault {name!r}.", fix=hint)
    folder = control.default_folder()
    control.up(folder)
    control.fault(folder, None if name == NONE else name)
    if json:
        say_json({"fault": None if name == NONE else name})
        return
    print("sandbox: nothing is broken." if name == NONE else f"sandbox: {name}: {control.FAULTS[name]}")
