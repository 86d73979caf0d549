"""From the user's files to a host's plan: its recipe, what the lock pins, the play compiled for it."""

from __future__ import annotations

import getpass
import platform
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright.app import templates
from sparkwright.app.connect import Chosen
from sparkwright.app.plans.pinning import Pins, lock_folder
from sparkwright.app.presenters import Shown
from sparkwright.console.summary import Served
from sparkwright.engines.vllm.exposure import OPEN_SENTENCE, OPEN_WAY
from sparkwright.engines.vllm.flags import flags
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Member
from sparkwright.project import playbook, recipe
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.lock import lockfile
from sparkwright.project.recipe.rules import is_loopback
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.project.recipe.serving import Serving

#: of a server that is published beyond the loopback and asks for no key
OPEN = f"{OPEN_SENTENCE}; {OPEN_WAY}."
#: threads that plan side by side share one interpreter, and the first would be done with the last
_ONE_BY_ONE = threading.Lock()


class Planner:
    """The plans of one play, for one host after the other. given: what the command says."""

    def __init__(self, chosen: Chosen, play: playbook.Play, given: playbook.Options, shown: Shown) -> None:
        from sparkwright.app.plans.peers import Neighbours  # it asks hosts, as a command does

        self._chosen, self._play, self._given, self._shown = chosen, play, given, shown
        self._root = chosen.project.root
        members = chosen.fleet.members
        self._folders = {member.host.name: lock_folder(chosen.project, member.host) for member in members}
        save = not given.check and not play.file.read_only
        self._pins = {folder: Pins(folder, save=save) for folder in set(self._folders.values())}
        self._neighbours = Neighbours(chosen.inventory)
        self._asks_lock = play.uses(recipe.PINNED_NAMES)
        self._asks_recipe = self._asks_lock or play.uses(recipe.RECIPE_NAMES)
        self._lints = play.has_task("lint")
        self._keys: dict[str, dict[str, Secret]] = {}
        self._asks_key = play.has_task("container") and play.uses({"container"})

    def plan(self, member: Member) -> Plan:
        """What a host is to do. Raises Refused for what can't be right, with file and line."""
        return self._made(member, self._given)

    def look(self, member: Member) -> Plan:
        """The same in check mode."""
        return self._made(member, replace(self._given, check=True))

    def learn_engines(self) -> None:
        """Keep in the lock what the hosts learnt of their engines."""
        for member in self._chosen.fleet.members:
            if member.engine_version and member.host.recipe:
                image = recipe.load(self._root, member.host.recipe).image
                self._pins_of(member).learn_engine(self._chosen.fleet, member, image)

    def close(self) -> None:
        """Let go of the hosts that were asked for models."""
        self._neighbours.close()

    def _made(self, member: Member, options: playbook.Options) -> Plan:
        run_id = new_run_id()
        member.secrets = self._chosen.inventory.secrets(member.host)
        names = self._names(member, run_id)
        if self._play.uses({"container"}):
            self._shown.serves(_served(member.host, names))
        with _ONE_BY_ONE:
            plan = playbook.compile(
                self._play,
                member.host,
                names,
                options,
                run_id=run_id,
                project=self._root,
                registered=member.registered,
            )
        return self._neighbours.fill(self._chosen.fleet, member, plan)

    def _names(self, member: Member, run_id: str) -> Mapping[str, Any]:
        """The names a host's plan may use. Only a play that asks for the recipe or the lock needs them."""
        host, user = member.host, user_of(member.host)
        if not self._asks_recipe:
            return recipe.scope(host, user, None, {})
        pins, fleet = self._pins_of(member), self._chosen.fleet
        with _ONE_BY_ONE:
            wanted = recipe_of(self._chosen.project, host)
            if self._asks_key:
                member.secrets |= self._keys.get(wanted.name) or self._read_key(wanted)
            known = entries(pins.lock, wanted)
            served = _linted(wanted, known) if self._lints else None
        pinned = self._pinned(pins, member, wanted, run_id) if self._asks_lock else {}
        with _ONE_BY_ONE:
            if served is not None and pinned != known:
                served = _linted(wanted, pinned)
            if served is not None and served.note:
                fleet.tell(member, f"chunked prefill: {served.note}.")
            if served is not None:
                from sparkwright.app import findings

                for doubt in findings.doubts(wanted, served):
                    fleet.tell(member, doubt)
            if self._given.check and self._asks_key and wanted.open_to_network:
                fleet.tell(member, OPEN)
            return recipe.scope(host, user, wanted, pinned, served)

    def _pinned(self, pins: Pins, member: Member, wanted: recipe.Recipe, run_id: str) -> dict[str, Any]:
        """The lock's entries. A play that changes nothing makes do with those that are there when upstream gives no answer."""
        try:
            return pins.complete(self._chosen.fleet, member, wanted, run_id)
        except Refused as error:
            if not self._play.file.read_only:
                raise
            self._chosen.fleet.tell(member, f"not in spark.lock, and not to be learnt now: {error.message}")
            return entries(pins.lock, wanted)

    def _read_key(self, wanted: recipe.Recipe) -> dict[str, Secret]:
        """The key of a recipe's server, read once for all hosts: its command may ask a person."""
        self._keys[wanted.name] = wanted.secrets()
        return self._keys[wanted.name]

    def _pins_of(self, member: Member) -> Pins:
        return self._pins[self._folders[member.host.name]]


def docker_run_script(host: Host, project: Project, recipe_name: str = "") -> str:
    """The docker run script of a host, as a deploy leaves it there. recipe_name: another recipe than its own."""
    wanted = recipe.load(project.root, recipe_name) if recipe_name else recipe_of(project, host)
    lock = lockfile.load(lock_folder(project, host))
    names = recipe.scope(host, user_of(host), wanted, entries(lock, wanted))
    return templates.rendered(project.root, "docker-run.sh.j2", names)


def recipe_of(project: Project, host: Host) -> recipe.Recipe:
    """The recipe that a host serves. Raises Refused when it has none, or names one that is not there."""
    if not host.recipe:
        raise Refused(f"{host.name} has no recipe.", where=str(host.where), fix="Add `recipe: NAME` (see recipes/).")
    return recipe.load(project.root, host.recipe, named_at=host.set_at.get("recipe", ""))


def entries(lock: lockfile.Lock, wanted: recipe.Recipe) -> dict[str, Any]:
    """What the lock holds for a recipe: {"image": ..., "model": ...}, None for what it does not."""
    return {"image": lock.image(wanted.image), "model": lock.model(wanted.file.model.id, wanted.file.model.revision)}


def user_of(host: Host) -> str:
    """Who logs in there, as the inventory or ssh's own configuration says."""
    if host.user or host.connection != "ssh":
        return host.user or getpass.getuser()
    from sparkwright.remote import ssh_config

    return ssh_config.resolve(host).user


def who() -> str:
    """Who gives the order, and from where: it stands in the host's lock and history."""
    return f"{getpass.getuser()}@{platform.node()}"


def _linted(wanted: recipe.Recipe, known: Mapping[str, Any]) -> Serving:
    """A recipe with what the lock knows, linted. Raises Refused for an error."""
    from sparkwright.app import findings  # and with it all that is known of the engine: many a play needs nothing of it
    from sparkwright.project.recipe.serving import serving

    served = serving(wanted, known)
    findings.refuse_errors(wanted, served)
    return served


def address(host: Host, port: int, *, loopback: bool) -> tuple[str, str]:
    """(url, how to get there) of a host's server as the laptop reaches it; the latter is empty where nothing is needed.

    loopback: only programs of the host itself reach it.
    """
    tunnel = loopback and host.connection == "ssh"
    at = "127.0.0.1" if tunnel or host.connection != "ssh" else host.address
    return f"http://{at}:{port}", f"through ssh -L {port}:127.0.0.1:{port} {host.name}" if tunnel else ""


def _served(host: Host, names: Mapping[str, Any]) -> Served:
    wanted, container = names["recipe"], names["container"]
    loopback = any(map(is_loopback, container["ports"][:1]))
    url, way = address(host, names["port"], loopback=loopback)
    return Served(
        host=host.name,
        recipe=wanted["name"],
        image=container["image"],
        model=wanted["model"]["id"],
        commit=(names["lock"].get("model") or {}).get("commit", ""),
        served_name=names["served_name"],
        url=url,
        reach=way,
        max_model_len=flags.whole_number(flags.value(wanted["vllm"], flags.MAX_MODEL_LEN)),
        key_variable=wanted["server_key"],
        warning=OPEN if wanted["open_to_network"] else "",
    )
