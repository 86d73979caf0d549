"""The `sandbox.*` commands: inject a fault, add a pair, show the state, and remove the sandbox."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright import program
from sparkwright.cli.framework.command import command
from sparkwright.console.command_output import print_json_line, print_prose
from sparkwright.errors import Refused

#: the name that clears a fault
NO_FAULT = "none"
#: the host of hosts/sandbox.yml
DEFAULT_HOST = "sandbox"


@command(
    word="name",
    help={
        "name": "the fault; `none` clears it (default: list them)",
        "host": "sandbox1 or sandbox2 of a pair (default: sandbox)",
        "json": "one JSON object",
    },
)
def fault(name: str | None = None, host: str = DEFAULT_HOST, json: bool = False) -> None:
    """Inject a fault into the sandbox, or clear it.

    A fault lasts until it is cleared or replaced. A fault of the start, such as oom, does not affect a server that already runs.
    Starts the sandbox if it is down.
    """
    from sparkwright.sandbox import control

    descriptions = {**control.FAULTS, **control.MEMBER_FAULTS}
    if not name:
        return _print_values(descriptions, max(map(len, descriptions)) + 1, json=json)
    if name not in (*descriptions, NO_FAULT):
        matches = difflib.get_close_matches(name, [*descriptions, NO_FAULT], n=1)
        hint = f"Did you mean `{matches[0]}`?" if matches else "`invoke sandbox.fault` lists them."
        raise Refused(f"the sandbox has no fault named {name!r}.", fix=hint)
    folder, fault_name = _sandbox_folder(host), None if name == NO_FAULT else name
    if name in control.MEMBER_FAULTS and folder == control.default_folder():
        raise Refused(f"`{name}` is only for members of a cluster.", fix="Add `--host sandbox1` or `--host sandbox2`.")
    control.up(folder)
    control.set_fault(folder, fault_name)
    if json:
        print_json_line({"fault": fault_name})
    else:
        print_prose(f"{host}: {fault_name}: {descriptions[fault_name]}" if fault_name else f"{host}: no fault.")
    return None


@command()
def pair() -> None:
    """Add a cluster of two simulated Sparks to the project.

    Writes hosts/sandbox1.yml, hosts/sandbox2.yml and recipes/sandbox-pair.yml; adds the group sandbox-pair to hosts/groups.yml.
    """
    from sparkwright.project import starter
    from sparkwright.project.folder import Project

    for path in starter.write_pair(Project.here().root):
        print(path)
    print(f"Now: {program.name()} deploy --host {starter.PAIR_GROUP}")


@command()
def down() -> None:
    """Remove the sandbox: processes, hosts, containers."""
    from sparkwright.sandbox import control

    control.down(control.default_folder())
    print("sandbox: removed.")


@command(help={"host": "sandbox1 or sandbox2 of a pair (default: sandbox)", "json": "one JSON object"})
def status(host: str = DEFAULT_HOST, json: bool = False) -> None:
    """Show the sandbox: containers, memory, fault."""
    from sparkwright.sandbox import control

    _print_values(control.status(_sandbox_folder(host)), 12, json=json)


def _sandbox_folder(host: str) -> Path:
    """Return the folder of a sandbox. Raises Refused if the host is not a sandbox."""
    from sparkwright.project.folder import Project
    from sparkwright.project.inventory.inventory import Inventory
    from sparkwright.sandbox import control

    if host == DEFAULT_HOST:
        return control.default_folder()
    servers = Inventory.load(Project.here().root).match(host)
    machines = sorted({server.machine for server in servers})  # several servers on one machine count as one host
    if len(machines) > 1:
        fix = f"Name one sandbox: `--host {machines[0]}`."
        raise Refused(f"--host {host} names {len(machines)} hosts.", fix=fix)
    if servers[0].connection != "sandbox":
        raise Refused(f"{machines[0]} is not a sandbox.", where=servers[0].where, fix="Name one: `--host sandbox1`.")
    return control.folder_of(machines[0])


def _print_values(values: Mapping[str, Any], width: int, *, json: bool) -> None:
    if json:
        return print_json_line(values)
    for name, value in values.items():
        print_prose(f"{name:<{width}} {value}")
    return None


TASKS = {"sandbox": [fault, pair, down, status]}
