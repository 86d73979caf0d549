"""A playbook on the hosts of a pattern, from the options of a command."""

from __future__ import annotations

from typing import Any

#: options about how a run goes over many hosts
ROLLING = ("canary", "serial", "max_fail_percentage", "resume", "skip_unreachable")


def run(playbook: str, command: str, **given: Any) -> list[int]:
    """Run a playbook. command: how to give it again, as `restart`. Returns the exit codes, one a host."""
    given["check"] = given["check"] or given["dry_run"]
    if given["list_tasks"]:
        from sparkwright.app.runs import session

        session.list_tasks(playbook, session.options(**given), json=given["json"])
        return []
    from sparkwright.app.connect import Begun, checked, left_of, need_of

    pattern = left_of(playbook, given["host"]) if given.get("resume") else given["host"]
    begun = Begun(pattern, need_of(playbook))
    from sparkwright.app.runs import cached_run

    place = cached_run.place_of(playbook, given)
    plans = cached_run.find(begun, place)
    if plans:
        return cached_run.run(begun, plans, diff=given["diff"], json=given["json"])
    chosen = checked(begun)
    from sparkwright.app.runs import session
    from sparkwright.app.runs.rollout import Asked

    asked = Asked(command, **{name: given[name] for name in ROLLING if name in given})
    return session.run(chosen, playbook, session.options(**given), asked, json=given["json"], place=place)
