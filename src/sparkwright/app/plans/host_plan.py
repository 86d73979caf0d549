"""Compile a play for a host from its recipe and the pins in the lock, without contacting any host."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters, server_context
from sparkwright.app.plans.pins import lock_entries, missing_pins
from sparkwright.app.plans.plan_cache import PlannedHost
from sparkwright.app.plans.preparation import Preparation
from sparkwright.app.plans.recipes import OPEN_SERVER_WARNING, login_user, summarize_planned_server
from sparkwright.errors import Refused
from sparkwright.project import playbook, recipe
from sparkwright.project.gateway_servers import list_gateways
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.cluster import TOKEN_SECRET, new_token
from sparkwright.protocol.plan import new_run_id
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.project.inventory.host import Source

#: planning is CPU-bound, so parallel threads would only delay the first plan
_PLANNING_LOCK = threading.Lock()


@dataclass
class _Draft:
    """The secrets and notes for a host's plan, collected while its variables are built."""

    host: Host
    secrets: dict[str, Secret]
    notes: list[str]
    #: notes that are the same for all hosts with the same recipe
    notices: list[str] = field(default_factory=list)
    #: as in `PlannedHost`
    key_sources: dict[str, tuple[Source, str]] = field(default_factory=dict)
    is_cacheable: bool = True


class Planner:
    """Plans a play for hosts. Plans depend only on the user's files, the options, and the answers in `preparation`."""

    def __init__(
        self, selection: Selection, play: playbook.Play, options: playbook.Options, preparation: Preparation
    ) -> None:
        self._selection, self._play, self._options, self._preparation = selection, play, options, preparation
        self._root = selection.project.root
        self._uses_gateway, self._needs_gateway_key = play.uses({"gateway"}), play.uses({"gateway_key"})
        self._needs_lock = play.uses(recipe.PINNED_NAMES)
        self._needs_recipe = self._needs_lock or play.uses(recipe.RECIPE_NAMES)
        self._has_lint_task = play.has_task("lint")
        self._starts_server = play.uses({"container"})
        self._needs_server_key = play.has_task("container") and self._starts_server
        self._needs_restart_plan = play.has_task("grant_restart")
        self._cluster_token = new_token() if play.has_task("barrier") else None
        #: API keys of servers, by recipe
        self._server_keys: dict[str, dict[str, Secret]] = {}

    def plan(self, host: Host, registered: Mapping[str, Any], *, check: bool = False) -> PlannedHost:
        """Return the plan of a host. Raises Refused, with file and line, for a mistake in the user's files.

        Args:
            registered: registered results of the host's earlier plays.
            check: plan in check mode even if the command's options do not.
        """
        if (error := self._preparation.errors.get(host.name)) is not None:
            raise error
        options = replace(self._options, check=True) if check else self._options
        draft = _Draft(host, self._preparation.read_secrets(host), list(self._preparation.notes[host.name]))
        with _PLANNING_LOCK:
            variables = self._build_variables(draft)
            restart_plan = (
                self._build_restart_plan(draft, variables) if self._needs_restart_plan and not options.check else None
            )
            server = summarize_planned_server(host, variables) if self._starts_server else None
            plan = playbook.compile(
                self._play, host, variables, options, project=self._root, run_id=new_run_id(), registered=registered
            )
        if self._cluster_token is not None:
            plan, draft.secrets = clusters.add_barrier(plan, host), {**draft.secrets, TOKEN_SECRET: self._cluster_token}
        return PlannedHost(
            host,
            login_user(host),
            plan,
            restart_plan=restart_plan,
            notes=tuple(draft.notes),
            notices=tuple(draft.notices),
            server=copy.deepcopy(server),
            key_sources=draft.key_sources,
            engine_facts=self._find_engine_facts(host) if self._needs_recipe else {},
            secrets=draft.secrets,
            is_cacheable=draft.is_cacheable and host.name not in self._preparation.queried_hosts,
        )

    def _build_restart_plan(self, draft: _Draft, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan with which the host can restart its server without a laptop; empty, with a note, if it is refused."""
        try:
            return server_context.build_restart_plan(self._selection, draft.host, variables)
        except Refused as error:
            draft.notes.append(f"no restart plan for its health check: {error}")
            return {}

    def _build_variables(self, draft: _Draft) -> Mapping[str, Any]:
        """Return the variables of a host's plan. Those of the recipe and the lock are included only if the play uses them."""
        host = draft.host
        if self._uses_gateway:
            return {**recipe.scope(host, login_user(host), None, {}), "gateway": self._build_gateway_variables(draft)}
        if self._needs_gateway_key:
            return {**recipe.scope(host, login_user(host), None, {}), "gateway_key": self._load_gateway_key(draft)}
        if self._needs_recipe:
            return self._build_recipe_variables(draft, self._preparation.load_recipe(host))
        gateways = list_gateways(self._root, self._selection.inventory, host)
        return recipe.scope(host, login_user(host), None, {}, gateways=gateways)

    def _build_recipe_variables(self, draft: _Draft, host_recipe: recipe.Recipe) -> Mapping[str, Any]:
        host = draft.host
        if self._needs_server_key:
            if host_recipe.name not in self._server_keys:  # once for all hosts: a key's command may prompt the user
                self._server_keys[host_recipe.name] = host_recipe.secrets()
            draft.secrets |= self._server_keys[host_recipe.name]
            if (source := host_recipe.file.server_key) is not None:
                draft.key_sources = {host_recipe.key_secret: (source, host_recipe.source.where("server_key"))}
        pins = lock_entries(self._preparation.find_lock(host), host_recipe) if self._needs_lock else {}
        settings = self._preparation.lint_recipe(host_recipe, pins) if self._has_lint_task else None
        if settings is not None:
            from sparkwright.app import findings

            draft.notes += findings.plan_warnings(host_recipe, settings)
            draft.notices += findings.plan_notices(settings)
        if self._needs_lock and (missing_pins(pins) or host_recipe.file.files):
            draft.is_cacheable = False  # the plan depends on a host's answer or on files outside the project
        if self._options.check and self._needs_server_key and host_recipe.open_to_network:
            draft.notes.append(OPEN_SERVER_WARNING)
        context = server_context.build_scope_arguments(self._selection, host)
        return recipe.scope(host, login_user(host), host_recipe, pins, settings, **context)

    def _build_gateway_variables(self, draft: _Draft) -> dict[str, Any]:
        """Return the `gateway` variable, and add the gateway's secrets to the draft."""
        from sparkwright.app.plans import gateways

        draft.is_cacheable = False  # the plan depends on files outside the project
        image_entry, key_hashes = self._preparation.gateway_inputs[draft.host.name]
        variables, secrets = gateways.build_variables(self._selection, draft.host, image_entry, key_hashes)
        draft.secrets |= secrets
        return variables

    def _load_gateway_key(self, draft: _Draft) -> str:
        """Return the name of the clients' key, and add the key to the draft."""
        from sparkwright.app.plans import gateways

        draft.is_cacheable = False
        name, secrets = gateways.load_client_key(self._selection, draft.host)
        draft.secrets |= secrets
        return name

    def _find_engine_facts(self, host: Host) -> dict[str, Any]:
        """Return a host's image, with its digest, engine version and options in the lock."""
        image = self._preparation.load_recipe(host).image
        entry = self._preparation.find_lock(host).image(image) or {}
        return {"image": image, **{name: entry.get(name) for name in ("digest", "engine_version", "options")}}
