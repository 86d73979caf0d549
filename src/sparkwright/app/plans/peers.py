"""Copying a model from a peer: before a host's tasks run, the host that they name is asked to hand out the model."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, hang_up
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.plan import Block, Plan, Step, Task, tasks_of
from sparkwright.secret import Secret
from sparkwright.trust.names import PEER_URL, matched

MODULE = "hf_model"
TOKEN = "NEIGHBOUR_TOKEN"  # name of the secret on the host's side
ADDRESSES = 64
ABOUT = ("id", "commit", "files", "dir")


class Peers:
    """The hosts that others copy from, each connected to once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._members: dict[str, Member] = {}

    def fill(self, fleet: Fleet, member: Member, plan: Plan) -> Plan:
        """Return the plan with the URLs of the model in every `hf_model: {from: HOST}`.

        No peer is asked if a host names itself as the source, or already has the complete model.
        """
        wanted = [task for task in tasks_of(plan.steps) if task.module == MODULE and _names_host(task)]
        if not wanted:
            return plan
        reported = {task.id: self._reported(fleet, member, task, check=plan.check) for task in wanted}
        return dataclasses.replace(plan, steps=tuple(_replaced(plan.steps, reported)))

    def hand_out(self, source: str, model: Mapping[str, Any], token: Secret, *, readers: int) -> list[str]:
        """Have a host hand out a model, and return the URLs. Raises Failed with the host's name.

        Args:
            model: id, commit, files and dir.
        """
        from sparkwright.app.questions.host_requests import ask_module

        member = self._member(source)
        member.secrets = {TOKEN: token}
        fleet = Fleet([member])
        try:
            found = ask_module(fleet, member, "share_model", {**{key: model[key] for key in ABOUT}, "readers": readers})
        except SparkwrightError as error:
            error.where = error.where or source
            raise
        return addresses(found, source)

    def close(self) -> None:
        """Disconnect from the hosts. They stop handing out models on their own."""
        hang_up(self._members.values())

    def _reported(self, fleet: Fleet, member: Member, task: Task, *, check: bool) -> Task:
        from sparkwright.app.questions.host_requests import ask_module

        source = str(task.args["from"])
        here = {**task.args, "from": ""}
        if source == member.host.machine:
            return dataclasses.replace(task, args=here)
        if any(name in task.open for name in (*ABOUT, "from")):
            message = "`from` needs a model that is known before the run."
            raise Refused(message, where=task.where, fix="Use the recipe's and the lock's.")
        looked = ask_module(fleet, member, "verify_model", {key: task.args[key] for key in ABOUT})
        if not looked["wrong"] or check:
            return dataclasses.replace(task, args=here)
        token = Secret(secrets.token_urlsafe(32))
        member.secrets = {**member.secrets, TOKEN: token}
        urls = self.hand_out(source, task.args, token, readers=1)
        return dataclasses.replace(task, args={**task.args, "peer": urls})

    def _member(self, source: str) -> Member:
        if source not in self._members:
            host = self._inventory.machines.get(source)
            if host is None:
                known = ", ".join(self._inventory.machines)
                raise Refused(f"no host is called {source!r}.", fix=f"There are: {known}.")
            self._members[source] = Member(host)
        return self._members[source]


def _names_host(task: Task) -> bool:
    """Return True if a task names a host to copy from, without the URLs of the model there."""
    return bool(task.args.get("from")) and not task.args.get("peer")


def addresses(found: Mapping[str, Any], source: str) -> list[str]:
    """Return the URLs at which a host hands out a model to other hosts. Raises Failed for an invalid answer."""
    urls = found.get("urls")
    if not isinstance(urls, list) or len(urls) > ADDRESSES:
        raise Failed("the answer does not say where the model is handed out.", where=source)
    return [matched(PEER_URL, url, f"where {source} hands the model out") for url in urls]


def source_host(inventory: Inventory, pattern: str) -> Host:
    """Return the host that a pattern names. Raises Refused if it does not match exactly one."""
    hosts = inventory.machines_of(inventory.match(pattern))
    if len(hosts) != 1:
        raise Refused(f"--from names {len(hosts)} hosts.", fix="Name one that has the model.")
    return hosts[0]


def _replaced(steps: Iterable[Step], reported: Mapping[str, Task]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Block):
            names = ("tasks", "rescue", "always")
            parts: Any = {name: tuple(_replaced(getattr(step, name), reported)) for name in names}
            yield dataclasses.replace(step, **parts)
        else:
            yield reported.get(step.id, step)
