"""Running a playbook on the hosts of a pattern, with the options of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.app.connect import Selection
    from sparkwright.app.runs.presenters import Listener

from sparkwright.app.connect import PendingConnections, checked, left_of, need_of, with_recipe

#: options of a rolling run
ROLLING = ("canary", "serial", "max_fail_percentage", "resume", "skip_unreachable")


def run(playbook: str, command: str, *, on_event: Listener | None = None, **given: Any) -> list[int]:
    """Run a playbook and return the exit codes, one per host.

    Args:
        command: the command without the program's name, for example `restart`, which is suggested for continuing the run.
        on_event: called with each event instead of printing it.
    """
    given["check"] = given["check"] or given["dry_run"]
    given["host"] = with_recipe(given["host"], given.pop("recipe", ""))
    if given["list_tasks"]:
        from sparkwright.app.runs import session

        session.list_tasks(playbook, session.options(**given), json=given["json"])
        return []
    pattern = left_of(playbook, given["host"]) if given.get("resume") else given["host"]
    pending = PendingConnections(pattern, need_of(playbook))
    from sparkwright.app.runs import cached_run

    place = cached_run.place_of(playbook, given)
    plans = cached_run.find(pending, place)
    if plans:
        return cached_run.run(
            pending,
            plans,
            diff=given["diff"],
            check=given["check"],
            json=given["json"],
            verbose=given["verbose"],
            on_event=on_event,
        )
    selection = checked(pending)
    behind = playbook == "deploy" and bool(selection.inventory.gateways)
    if behind:
        _refuse_conflicts(selection)
    from sparkwright.app.runs import session
    from sparkwright.app.runs.rollout import RolloutOptions

    rolling = RolloutOptions(command, **{name: given[name] for name in ROLLING if name in given})
    options = session.options(**given)
    codes = session.run(
        selection,
        playbook,
        options,
        rolling,
        json=given["json"],
        verbose=given["verbose"],
        place=place,
        on_event=on_event,
    )
    if not behind:
        return codes
    from sparkwright.app.runs import gateway_after

    return codes + gateway_after.deployed(selection, given, on_event)


def _refuse_conflicts(selection: Selection) -> None:
    """Raise Refused, before any host is asked, for what the gateways in front of these servers could not route."""
    from sparkwright.project.gateway.routes import refuse_conflicts

    deployed = {member.host.name for member in selection.fleet.members}
    machines = {member.host.machine for member in selection.fleet.members}
    for gateway in selection.inventory.gateways.values():
        if machines & {*gateway.members}:
            refuse_conflicts(selection.project.root, selection.inventory, gateway, deployed)
