"""The questions to hosts before a play is planned: entries that spark.lock lacks, and a gateway's image and keys.

What a plan needs of a host is known afterwards, so that planning itself asks nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans.pins import Pins, entries, lock_folder, not_pinned
from sparkwright.app.plans.recipes import recipe_of
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import lockfile, playbook, recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import Serving, serving
from sparkwright.protocol.plan import new_run_id
from sparkwright.secret import Secret


class Preparation:
    """The locks of a play's hosts with their pins, the recipes, and what the hosts of gateways reported.

    Each recipe is read once, and linted once with the same entries of a lock.
    """

    def __init__(self, selection: Selection, play: playbook.Play, *, check: bool) -> None:
        self._selection, self._play, self._check = selection, play, check
        self._folders = {host.name: lock_folder(selection.project, host) for host in selection.hosts}
        save = not check and not play.file.read_only
        self._pins = {folder: Pins(folder, save=save) for folder in set(self._folders.values())}
        self._recipes: dict[str, recipe.Recipe] = {}
        self._servings: list[tuple[recipe.Recipe, Mapping[str, Any], Serving]] = []
        self._secrets: dict[str, dict[str, Secret]] = {}
        #: the error by host that is not to be planned for
        self.refused: dict[str, Exception] = {}
        #: the image's entry and the keys' hashes by the name of a gateway's host
        self.gateways: dict[str, tuple[Mapping[str, Any], dict[str, str]]] = {}
        #: notes by host
        self.notes: defaultdict[str, list[str]] = defaultdict(list)
        #: hosts whose plan depends on an answer, so that it is not kept
        self.asked: set[str] = set()
        self._is_gateway = play.uses({"gateway"})
        self._pinning = play.uses(recipe.PINNED_NAMES) and not self._is_gateway
        self._lints = play.has_task("lint")

    def ask(self, members: Sequence[Member]) -> None:
        """Ask the hosts for what is missing; each missing entry is asked for once. The errors are in `refused`."""
        lacking = [member for member in members if self._is_gateway or self._lacks(member.host)]
        self.asked |= {member.host.name for member in lacking}
        self._selection.fleet.each(lacking, self._ask)

    def recipe_of(self, host: Host) -> recipe.Recipe:
        """Return the recipe of a host. Raises Refused if it has none, or if the recipe does not exist."""
        name = host.recipe or ""
        if name not in self._recipes:
            self._recipes[name] = recipe_of(self._selection.project, host)
        return self._recipes[name]

    def lock_of(self, host: Host) -> lockfile.Lock:
        """Return the lock that counts for a host, with the entries that were asked for."""
        return self._pins[self._folders[host.name]].lock

    def linted(self, wanted: recipe.Recipe, known: Mapping[str, Any]) -> Serving:
        """Return a recipe's server after linting it with the lock's entries. Raises Refused for an error."""
        from sparkwright.app import findings

        for of, entries_then, served in self._servings:
            if of is wanted and entries_then == known:
                return served
        served = serving(wanted, known)
        findings.refuse_errors(wanted, served)
        self._servings.append((wanted, known, served))
        return served

    def secrets_of(self, host: Host) -> dict[str, Secret]:
        """Return the secrets of a host's file, read anew for each of its turns."""
        return self._secrets.pop(host.name, None) or self._selection.inventory.secrets(host)

    def learn_engines(self) -> None:
        """Save in the lock what the hosts reported about their engines."""
        for member in self._selection.fleet.members:
            if member.engine_version and member.host.recipe:
                pins = self._pins[self._folders[member.host.name]]
                pins.learn_engine(self._selection.fleet, member, self.recipe_of(member.host))

    def _lacks(self, host: Host) -> bool:
        if not self._pinning:
            return False
        try:
            return bool(not_pinned(entries(self.lock_of(host), self.recipe_of(host))))
        except SparkwrightError:
            return False  # planning reports it

    def _ask(self, member: Member) -> None:
        try:
            member.secrets = self._secrets[member.host.name] = self._selection.inventory.secrets(member.host)
            self._ask_gateway(member) if self._is_gateway else self._pin(member)
        except (SparkwrightError, OSError) as error:  # such as a spark.lock that cannot be written
            self.refused[member.host.name] = error

    def _pin(self, member: Member) -> None:
        """Complete the lock for a host. A read-only play accepts missing entries if upstream gives no answer."""
        host, fleet = member.host, self._selection.fleet
        wanted = self.recipe_of(host)
        if self._lints:
            self.linted(wanted, entries(self.lock_of(host), wanted))  # refused before anybody is asked
        try:
            self._pins[self._folders[host.name]].complete(fleet, member, wanted, new_run_id())
        except Refused as error:
            if not self._play.file.read_only:
                raise
            fleet.tell(member, f"not in spark.lock, and not to be learnt now: {error.message}")

    def _ask_gateway(self, member: Member) -> None:
        from sparkwright.app.plans import gateways

        host = member.host
        image = gateways.of_host(self._selection.inventory, host).file.image
        entry = self._pins[self._folders[host.name]].image(self._selection.fleet, member, image, new_run_id())
        hashes = gateways.hashes(self._selection, member, check=self._check, tell=self.notes[host.name].append)
        self.gateways[host.name] = entry, hashes
