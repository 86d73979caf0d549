"""Planning for one host: its recipe, the pins of the lock, and the play compiled for it."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters, server_context
from sparkwright.app.plans.pins import Pins, entries, lock_folder, not_pinned
from sparkwright.app.plans.plan_cache import CachedPlan
from sparkwright.app.plans.recipes import OPEN, recipe_of, served, user_of
from sparkwright.console.events.summary import Served
from sparkwright.errors import Refused
from sparkwright.fleet.member import Member
from sparkwright.project import playbook, recipe
from sparkwright.project.gateway_servers import in_front_of
from sparkwright.protocol.cluster import TOKEN, new_token
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.project.inventory.secret_source import Source
    from sparkwright.project.recipe.engine_settings import Serving

#: planning is CPU-bound: in parallel threads the first host would be done as late as the last one
_ONE_BY_ONE = threading.Lock()


class Planner:
    """Plans of one play, for one host after the other.

    `made` holds the plans that depend on files alone, by host name: they stay valid until one of these files changes.

    Args:
        given: options of the command.
        serves: called with the server that a host is going to run.
    """

    def __init__(
        self, selection: Selection, play: playbook.Play, given: playbook.Options, serves: Callable[[Served], None]
    ) -> None:
        from sparkwright.app.plans.peers import Neighbours

        self._chosen, self._play, self._given, self._serves = selection, play, given, serves
        self._root = selection.project.root
        members = selection.fleet.members
        self._folders = {member.host.name: lock_folder(selection.project, member.host) for member in members}
        save = not given.check and not play.file.read_only
        self._pins = {folder: Pins(folder, save=save) for folder in set(self._folders.values())}
        self._neighbours = Neighbours(selection.inventory)
        self._asks_lock = play.uses(recipe.PINNED_NAMES)
        self._asks_recipe = self._asks_lock or play.uses(recipe.RECIPE_NAMES)
        self._asks_gateway = play.uses({"gateway"})
        self._asks_gateway_key = play.uses({"gateway_key"})
        self._lints = play.has_task("lint")
        self._keys: dict[str, dict[str, Secret]] = {}
        self.made: dict[str, CachedPlan] = {}
        self._notes: dict[str, list[str]] = defaultdict(list)
        self._asked: set[str] = set()
        self._noticed: set[str] = set()
        self._key_sources: dict[str, dict[str, tuple[Source, str]]] = {}
        self._verifies = play.has_task("grant_restart")
        self._asks_key = play.has_task("container") and play.uses({"container"})
        self._token = new_token() if play.has_task("barrier") else None

    def plan(self, member: Member) -> Plan:
        """Return the plan of a host. Raises Refused, with file and line, for a mistake in the user's files."""
        return self._made(member, self._given)

    def preview(self, member: Member) -> Plan:
        """Return the plan of a host in check mode."""
        return self._made(member, replace(self._given, check=True))

    def learn_engines(self) -> None:
        """Save in the lock what the hosts reported about their engines."""
        for member in self._chosen.fleet.members:
            if member.engine_version and member.host.recipe:
                wanted = recipe.load(self._root, member.host.recipe)
                self._pins_of(member).learn_engine(self._chosen.fleet, member, wanted)

    def close(self) -> None:
        """Disconnect from the hosts that were asked for models."""
        self._neighbours.close()

    def _made(self, member: Member, options: playbook.Options) -> Plan:
        host, run_id = member.host, new_run_id()
        member.secrets = self._chosen.inventory.secrets(host)
        names = self._names(member, run_id)
        if self._verifies and not options.check:
            member.restart = self._restart_plan(member, names)
        serves = served(host, names) if self._play.uses({"container"}) else None
        if serves is not None:
            self._serves(serves)
        given: dict[str, Any] = {"run_id": run_id, "project": self._root, "registered": member.registered}
        with _ONE_BY_ONE:
            plan = playbook.compile(self._play, host, names, options, **given)
        if self._token is not None:
            plan, member.secrets = clusters.met(plan, host), {**member.secrets, TOKEN: self._token}
        filled = self._neighbours.fill(self._chosen.fleet, member, plan)
        if filled is plan and host.name not in self._asked:
            self.made[host.name] = CachedPlan(
                host,
                user_of(host),
                plan,
                restart=member.restart,
                notes=tuple(self._notes[host.name]),
                serves=copy.deepcopy(serves),
                keys=self._key_sources.get(host.name, {}),
                engine=self._engine(member),
            )
        return filled

    def _restart_plan(self, member: Member, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan by which the host restarts this server without a laptop; empty if there is none."""
        try:
            with _ONE_BY_ONE:
                return server_context.restart_plan(self._chosen, member.host, names)
        except Refused as error:
            self._tell(member, f"no restart plan for its health check: {error}")
            return {}

    def _names(self, member: Member, run_id: str) -> Mapping[str, Any]:
        """Return the variables of a host's plan. Only a play that uses the recipe or the lock needs them all."""
        host, user = member.host, user_of(member.host)
        if self._asks_gateway:
            return {**recipe.scope(host, user, None, {}), "gateway": self._gateway(member, run_id)}
        if self._asks_gateway_key:
            return {**recipe.scope(host, user, None, {}), "gateway_key": self._gateway_key(member)}
        if not self._asks_recipe:
            return recipe.scope(host, user, None, {}, gateways=in_front_of(self._root, self._chosen.inventory, host))
        pins = self._pins_of(member)
        with _ONE_BY_ONE:
            wanted = recipe_of(self._chosen.project, host)
            if self._asks_key:
                if wanted.name not in self._keys:  # once for all hosts, as its command may ask the user
                    self._keys[wanted.name] = wanted.secrets()
                member.secrets |= self._keys[wanted.name]
                if (source := wanted.file.server_key) is not None:
                    self._key_sources[host.name] = {wanted.key_secret: (source, wanted.source.where("server_key"))}
            known = entries(pins.lock, wanted)
            serving = _linted(wanted, known) if self._lints else None
        if self._asks_lock and (not_pinned(known) or wanted.file.files):
            self._asked.add(host.name)  # depends on a host's answer or an outside file
        pinned = self._pinned(pins, member, wanted, run_id) if self._asks_lock else {}
        with _ONE_BY_ONE:
            if serving is not None and pinned != known:
                serving = _linted(wanted, pinned)
            if serving is not None:
                from sparkwright.app import findings

                for doubt in findings.doubts(wanted, serving):
                    self._tell(member, doubt)
                for notice in findings.notices(serving):
                    if notice not in self._noticed:
                        self._noticed.add(notice)
                        self._tell(member, notice)
            if self._given.check and self._asks_key and wanted.open_to_network:
                self._tell(member, OPEN)
            return recipe.scope(host, user, wanted, pinned, serving, **server_context.of(self._chosen, host))

    def _gateway(self, member: Member, run_id: str) -> dict[str, Any]:
        """Return a gateway's variables for its play. Its secrets are sent to the host with the run."""
        from sparkwright.app.plans import gateways

        image = gateways.of_host(self._chosen.inventory, member.host).file.image
        entry = self._pins_of(member).image(self._chosen.fleet, member, image, run_id)
        self._asked.add(member.host.name)  # depends on files outside the project, so it is not cached
        note = lambda text: self._tell(member, text)  # noqa: E731
        hashes = gateways.hashes(self._chosen, member, check=self._given.check, tell=note)
        with _ONE_BY_ONE:
            about, secrets = gateways.scope(self._chosen, member.host, entry, hashes)
        member.secrets |= secrets
        return about

    def _gateway_key(self, member: Member) -> str:
        """Return the name of the clients' key. The key is sent to the host with the run, and the plan is not cached."""
        from sparkwright.app.plans import gateways

        self._asked.add(member.host.name)
        with _ONE_BY_ONE:
            name, secrets = gateways.key(self._chosen, member.host)
        member.secrets |= secrets
        return name

    def _pinned(self, pins: Pins, member: Member, wanted: recipe.Recipe, run_id: str) -> dict[str, Any]:
        """Return the lock's entries. A read-only play accepts missing entries if upstream gives no answer."""
        try:
            return pins.complete(self._chosen.fleet, member, wanted, run_id)
        except Refused as error:
            if not self._play.file.read_only:
                raise
            self._chosen.fleet.tell(member, f"not in spark.lock, and not to be learnt now: {error.message}")
            return entries(pins.lock, wanted)

    def _tell(self, member: Member, note: str) -> None:
        self._notes[member.host.name].append(note)
        self._chosen.fleet.tell(member, note)

    def _engine(self, member: Member) -> dict[str, Any]:
        """Return the engine's version and options in the lock's entry of a host's image."""
        if not self._asks_recipe:
            return {}
        entry = self._pins_of(member).lock.image(recipe_of(self._chosen.project, member.host).image) or {}
        return {name: entry.get(name) for name in ("engine_version", "options")}

    def _pins_of(self, member: Member) -> Pins:
        return self._pins[self._folders[member.host.name]]


def _linted(wanted: recipe.Recipe, known: Mapping[str, Any]) -> Serving:
    """Return a recipe's server after linting it with the lock's entries. Raises Refused for an error."""
    from sparkwright.app import findings
    from sparkwright.project.recipe.engine_settings import serving

    served = serving(wanted, known)
    findings.refuse_errors(wanted, served)
    return served
