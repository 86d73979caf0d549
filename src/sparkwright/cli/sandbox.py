"""The commands of the sandbox: inject a fault, show what it does, remove it."""

from __future__ import annotations

from invoke.collection import Collection

from sparkwright.cli.framework.command import command
from sparkwright.console.out import say_json


@command(
    word="name",
    help={"name": "the fault; `none` clears it (default: list them)", "json": "one JSON object"},
)
def fault(context: object, name: str | None = None, json: bool = False, debug: bool = False) -> int:
    """Inject a fault into the sandbox, or clear it.

    It takes effect now and at the next start.
    """
    from sparkwright.app import sandbox_faults

    sandbox_faults.inject(name, json=json) if name else sandbox_faults.listed(json=json)
    return 0


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


def sandbox_collection() -> Collection:
    """`invoke sandbox.fault`, `sandbox.down`, `sandbox.status`."""
    return Collection(fault, down, status)
