"""The commands of the sandbox: break one thing, look at it, remove it."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import optional_word, reporting
from sparkwright.console.out import say_json
from sparkwright.errors import Refused


@task(
    positional=optional_word("sandbox.fault", "name"),
    help={"name": "what to break; `none` mends; without a name they are listed", "json": "one JSON object"},
)
@reporting
def fault(context: object, name: str | None = None, json: bool = False) -> int:
    """Break one thing in the sandbox, now and for the next start."""
    import difflib

    from sparkwright.sandbox import control

    if not name and json:
        say_json(control.FAULTS)
        return 0
    if not name:
        width = max(map(len, control.FAULTS))
        for known, what in control.FAULTS.items():
            print(f"{known:<{width}}  {what}")
        return 0
    if name != "none" and name not in control.FAULTS:
        near = difflib.get_close_matches(name, [*control.FAULTS, "none"], n=1)
        hint = f"Did you mean `{near[0]}`?" if near else "`invoke sandbox.fault` lists them."
        raise Refused(f"the sandbox knows no fault {name!r}.", fix=hint)
    folder = control.default_folder()
    control.up(folder)
    control.fault(folder, None if name == "none" else name)
    if json:
        say_json({"fault": None if name == "none" else name})
        return 0
    print("sandbox: nothing is broken." if name == "none" else f"sandbox: {name}: {control.FAULTS[name]}")
    return 0


@task
@reporting
def down(context: object) -> int:
    """Remove the sandbox: its processes, its host and what it served."""
    from sparkwright.sandbox import control

    control.down(control.default_folder())
    print("sandbox: removed.")
    return 0


@task(help={"json": "one JSON object"})
@reporting
def status(context: object, json: bool = False) -> int:
    """What the sandbox is doing: containers, models in Ollama, memory, fault."""
    from sparkwright.sandbox import control

    found = control.status(control.default_folder())
    if json:
        say_json(found)
        return 0
    for name, value in found.items():
        print(f"{name:<12} {value}")
    return 0


TASKS = [fault, down, status]
