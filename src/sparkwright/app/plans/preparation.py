"""Query hosts before planning, for missing entries of spark.lock, a gateway's image and keys, and models on peers."""

from __future__ import annotations

import dataclasses
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans.pins import Pins, lock_entries, lock_folder, missing_pins, save_engine
from sparkwright.app.plans.recipes import load_host_recipe
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, close_links
from sparkwright.project import lockfile, playbook, recipe
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.plan import Block, Plan, Step, Task, new_run_id, tasks_of
from sparkwright.secret import Secret
from sparkwright.trust.names import PEER_URL, require_match
from sparkwright.trust.secret_names import PEER_TOKEN

if TYPE_CHECKING:
    from sparkwright.project.recipe.engine_settings import ServerSettings

MODEL_MODULE = "hf_model"
MAX_URLS = 64
MODEL_FIELDS = ("id", "commit", "files", "dir")


class Preparation:
    """The recipes, locks and secrets of a play's hosts, and the answers of hosts on which planning depends.

    Each recipe is loaded once, and linted once for the same lock entries.
    """

    def __init__(self, selection: Selection, play: playbook.Play, *, check: bool) -> None:
        self._selection, self._play, self._check = selection, play, check
        self._lock_folders = {host.name: lock_folder(selection.project, host) for host in selection.hosts}
        self._save = not check and not play.file.read_only
        self._pins = {folder: Pins(folder, save=self._save) for folder in set(self._lock_folders.values())}
        self._recipes: dict[str, recipe.Recipe] = {}
        #: linted recipes, with the lock entries and the settings
        self._linted_recipes: list[tuple[recipe.Recipe, Mapping[str, Any], ServerSettings]] = []
        self._secrets: dict[str, dict[str, Secret]] = {}
        #: errors that prevent planning, by host name
        self.errors: dict[str, Exception] = {}
        #: for each gateway, by its host's name: the lock entry of its image, and the key hashes of the hosts behind it
        self.gateway_inputs: dict[str, tuple[Mapping[str, Any], dict[str, str]]] = {}
        #: notes by host name
        self.notes: defaultdict[str, list[str]] = defaultdict(list)
        #: names of queried hosts, whose plans are not cached because they depend on the answers
        self.queried_hosts: set[str] = set()
        self._uses_gateway = play.uses({"gateway"})
        self._uses_pins = play.uses(recipe.PINNED_NAMES) and not self._uses_gateway
        self._has_lint_task = play.has_task("lint")

    def query_members(self, members: Sequence[Member]) -> None:
        """Query the hosts whose plans depend on their answers, in parallel. Failures are stored in `errors`."""
        members_to_query = [member for member in members if self._uses_gateway or self._needs_pins(member.host)]
        self.queried_hosts |= {member.host.name for member in members_to_query}
        self._selection.fleet.run_parallel(members_to_query, self._query_member)

    def load_recipe(self, host: Host) -> recipe.Recipe:
        """Return the recipe of a host. Raises Refused if it has none, or if the recipe does not exist."""
        name = host.recipe or ""
        if name not in self._recipes:
            self._recipes[name] = load_host_recipe(self._selection.project, host)
        return self._recipes[name]

    def find_lock(self, host: Host) -> lockfile.Lock:
        """Return a host's lock, including new entries."""
        return self._pins[self._lock_folders[host.name]].lock

    def lint_recipe(self, host_recipe: recipe.Recipe, pins: Mapping[str, Any]) -> ServerSettings:
        """Lint a recipe and return its server's settings. Raises Refused if the recipe has errors."""
        from sparkwright.app import findings
        from sparkwright.project.recipe.engine_settings import resolve_settings

        for linted_recipe, linted_pins, settings in self._linted_recipes:
            if linted_recipe is host_recipe and linted_pins == pins:
                return settings
        settings = resolve_settings(host_recipe, pins)
        findings.refuse_errors(host_recipe, settings)
        self._linted_recipes.append((host_recipe, pins, settings))
        return settings

    def read_secrets(self, host: Host) -> dict[str, Secret]:
        """Return the secrets in a host's file. Those that `query_members` has read are returned once, then read again."""
        return self._secrets.pop(host.name, None) or secret_source.read_secrets(host)

    def save_engines(self) -> None:
        """Save the versions and options of engines that tasks of this play read from images."""
        for member in self._selection.fleet.members if self._save else ():
            host = member.host
            if member.engine_version and host.recipe:
                image, folder = self.load_recipe(host).image, self._lock_folders[host.name]
                if entry := self.find_lock(host).image(image):
                    save_engine(folder, self._selection.fleet, member, image, entry["digest"])

    def _needs_pins(self, host: Host) -> bool:
        if not self._uses_pins:
            return False
        try:
            return bool(missing_pins(lock_entries(self.find_lock(host), self.load_recipe(host))))
        except SparkwrightError:
            return False  # planning reports the error

    def _query_member(self, member: Member) -> None:
        try:
            member.secrets = self._secrets[member.host.name] = secret_source.read_secrets(member.host)
            self._query_gateway(member) if self._uses_gateway else self._complete_pins(member)
        except (SparkwrightError, OSError) as error:  # for example if spark.lock can't be written
            self.errors[member.host.name] = error

    def _complete_pins(self, member: Member) -> None:
        """Add missing lock entries for a host. A read-only play is planned without entries that can't be looked up."""
        host, fleet = member.host, self._selection.fleet
        host_recipe = self.load_recipe(host)
        if self._has_lint_task:  # before the host is queried
            self.lint_recipe(host_recipe, lock_entries(self.find_lock(host), host_recipe))
        pins, is_required = self._pins[self._lock_folders[host.name]], not self._play.file.read_only
        try:
            pins.complete(fleet, member, host_recipe, new_run_id(), required=is_required)
        except Refused as error:  # if not required: the host gave no answer
            if is_required:
                raise
            fleet.add_note(member, f"not in spark.lock, and the lookup failed: {error.message}")

    def _query_gateway(self, member: Member) -> None:
        from sparkwright.app.plans import gateways

        host = member.host
        image = gateways.find_gateway(self._selection.inventory, host).file.image
        entry = self._pins[self._lock_folders[host.name]].pin_image(self._selection.fleet, member, image, new_run_id())
        report = self.notes[host.name].append
        self.gateway_inputs[host.name] = (
            entry,
            gateways.query_key_hashes(self._selection, member, check=self._check, report=report),
        )


class Peers:
    """The hosts from which others copy models, each with one connection."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._members: dict[str, Member] = {}

    def add_peer_urls(self, fleet: Fleet, member: Member, plan: Plan) -> Plan:
        """Return the plan with the model's URLs added to every `hf_model` task with `from: HOST`.

        The peer is not contacted in check mode, if it is the host itself, or if the host already has the complete model.
        """
        model_tasks = (task for task in tasks_of(plan.steps) if task.module == MODEL_MODULE)
        copy_tasks = [task for task in model_tasks if task.args.get("from") and not task.args.get("peer")]
        if not copy_tasks:
            return plan
        replacements = {task.id: self._add_urls(fleet, member, task, check=plan.check) for task in copy_tasks}
        return dataclasses.replace(plan, steps=tuple(_replace_tasks(plan.steps, replacements)))

    def serve_model(self, source_name: str, model: Mapping[str, Any], token: Secret, *, reader_count: int) -> list[str]:
        """Make a host share a model, and return its URLs. Raises an error with the host's name.

        Args:
            source_name: name of the host.
            model: `id`, `commit`, `files` and `dir`.
            token: token for the downloads.
            reader_count: number of hosts that download the model.
        """
        from sparkwright.app.queries.host_requests import run_module

        member = self._get_member(source_name)
        member.secrets = {PEER_TOKEN: token}
        args = {**{key: model[key] for key in MODEL_FIELDS}, "readers": reader_count}
        try:
            answer = run_module(Fleet([member]), member, "share_model", args)
        except SparkwrightError as error:
            error.where = error.where or source_name
            raise
        return parse_peer_urls(answer, source_name)

    def close(self) -> None:
        """Disconnect from the hosts. They share a model until all readers are done or none has been active for a while."""
        close_links(self._members.values())

    def _add_urls(self, fleet: Fleet, member: Member, task: Task, *, check: bool) -> Task:
        from sparkwright.app.queries.host_requests import run_module

        source_name = str(task.args["from"])
        local_args = {**task.args, "from": ""}
        if source_name == member.host.machine:
            return dataclasses.replace(task, args=local_args)
        if any(name in task.open for name in (*MODEL_FIELDS, "from")):
            message = "`from` requires a model that does not depend on results of the run."
            raise Refused(message, where=task.where, fix="Use the model of the recipe and of spark.lock.")
        verification = run_module(fleet, member, "verify_model", {key: task.args[key] for key in MODEL_FIELDS})
        if not verification["wrong"] or check:
            return dataclasses.replace(task, args=local_args)
        token = Secret(secrets.token_urlsafe(32))
        member.secrets = {**member.secrets, PEER_TOKEN: token}
        urls = self.serve_model(source_name, task.args, token, reader_count=1)
        return dataclasses.replace(task, args={**task.args, "peer": urls})

    def _get_member(self, source_name: str) -> Member:
        if source_name not in self._members:
            host = self._inventory.machines.get(source_name)
            if host is None:
                hosts = ", ".join(self._inventory.machines)
                raise Refused(f"no host is called {source_name!r}.", fix=f"Hosts: {hosts}.")
            self._members[source_name] = Member(host)
        return self._members[source_name]


def parse_peer_urls(answer: Mapping[str, Any], source_name: str) -> list[str]:
    """Return the URLs at which a host shares a model with other hosts. Raises Failed for an invalid answer."""
    urls = answer.get("urls")
    if not isinstance(urls, list) or len(urls) > MAX_URLS:
        raise Failed("the host did not report the URLs of the model.", where=source_name)
    return [require_match(PEER_URL, url, f"a URL of the model on {source_name}") for url in urls]


def select_source_host(inventory: Inventory, pattern: str) -> Host:
    """Return the host that a pattern names. Raises Refused if it does not match exactly one."""
    hosts = inventory.machines_of(inventory.match(pattern))
    if len(hosts) != 1:
        raise Refused(f"--from matches {len(hosts)} hosts.", fix="Name one host that has the model.")
    return hosts[0]


def _replace_tasks(steps: Iterable[Step], replacements: Mapping[str, Task]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Block):
            names = ("tasks", "rescue", "always")
            task_lists: Any = {name: tuple(_replace_tasks(getattr(step, name), replacements)) for name in names}
            yield dataclasses.replace(step, **task_lists)
        else:
            yield replacements.get(step.id, step)
