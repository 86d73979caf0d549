"""The server that a host's recipe describes: its URL, its summary for the panel, and its docker run script."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.console.events.summary import ServerSummary
from sparkwright.engines import engine
from sparkwright.engines.http import GENERATE, OPEN_SERVER_FIX, OPEN_SERVER_PROBLEM
from sparkwright.engines.model import chat_template
from sparkwright.errors import Refused
from sparkwright.project import recipe, shipped_files
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.rules import is_loopback
from sparkwright.project.recipe.scope import render_template_file

if TYPE_CHECKING:
    from sparkwright.app.connect import Selection

#: warning about a server that accepts requests from the network without a key
OPEN_SERVER_WARNING = f"{OPEN_SERVER_PROBLEM}; {OPEN_SERVER_FIX}."

#: probe (engines/probes/table.py) for recipes whose clients send pictures
PICTURE_PROBE = "image"


def render_docker_run_scripts(selection: Selection, recipe_name: str = "") -> list[tuple[str, str]]:
    """Return the selected hosts' names and docker run scripts, in the order in which to run them: a cluster's head is last.

    Args:
        recipe_name: the recipe to use; if empty, the hosts' own recipes.
    """
    hosts = sorted(selection.hosts, key=lambda host: host.cluster is not None and host.name == host.cluster.head)
    return [(host.name, render_docker_run_script(host, selection.project, recipe_name)) for host in hosts]


def render_docker_run_script(host: Host, project: Project, recipe_name: str = "") -> str:
    """Return a host's docker run script, for the named recipe or, if the name is empty, for the host's own."""
    host_recipe = recipe.load(project.root, recipe_name) if recipe_name else load_host_recipe(project, host)
    variables = recipe.scope(host, login_user(host), host_recipe, lock_entries(load_lock(project, host), host_recipe))
    return render_template(project.root, "docker-run.sh.j2", variables)


def load_host_recipe(project: Project, host: Host) -> recipe.Recipe:
    """Return the recipe of a host. Raises Refused if it has none, or if the recipe does not exist."""
    if not host.recipe:
        raise Refused(f"{host.name} has no recipe.", where=str(host.where), fix="Add `recipe: NAME` (see recipes/).")
    return recipe.load(project.root, host.recipe, named_at=host.set_at.get("recipe", ""))


def login_user(host: Host) -> str:
    """Return the login name on a host, from the inventory or from ssh's configuration."""
    if host.user or host.connection != "ssh":
        return host.user or getpass.getuser()
    from sparkwright.remote.ssh import ssh_config

    return ssh_config.resolve(host).user


def server_url(host: Host, port: int, *, loopback: bool) -> tuple[str, str]:
    """Return the URL at which the laptop reaches a host's server, and the ssh tunnel that it requires; empty if none.

    Args:
        loopback: the server is published on the host's loopback address only.
    """
    needs_tunnel = loopback and host.connection == "ssh"
    hostname = "127.0.0.1" if needs_tunnel or host.connection != "ssh" else host.address
    return f"http://{hostname}:{port}", f"through ssh -L {port}:127.0.0.1:{port} {host.name}" if needs_tunnel else ""


def summarize_planned_server(host: Host, variables: Mapping[str, Any]) -> ServerSummary:
    """Return the summary of the server that a host will run.

    Args:
        variables: the variables of the host's plan.
    """
    recipe_fields, container, engine_name = variables["recipe"], variables["container"], variables["engine"]["name"]
    loopback = any(map(is_loopback, container["ports"][:1]))
    url, access_hint = server_url(host, variables["port"], loopback=loopback)
    return ServerSummary(
        host=host.name,
        recipe=recipe_fields["name"],
        image=container["image"],
        model=recipe_fields["model"]["id"],
        commit=(variables["lock"].get("model") or {}).get("commit", ""),
        served_name=variables["served_name"],
        adapters=tuple(variables["serve"].get("adapters", ())),
        url=url,
        reach=access_hint,
        max_model_len=engine.get_engine(engine_name).flags.context(recipe_fields[engine_name]),
        key_variable=recipe_fields["server_key"],
        engine=engine.TITLES[engine_name],
        task=recipe_fields.get("task", GENERATE),
        pictures=PICTURE_PROBE in recipe_fields["expect"].get("probes", ()),
        cluster=host.cluster.name if host.cluster else "",
        members=host.cluster.members if host.cluster else (),
        chat=chat_template.select_server_chat(variables["lock"]),
        warning=OPEN_SERVER_WARNING if recipe_fields["open_to_network"] else "",
    )


def render_template(project: Path, name: str, variables: Mapping[str, Any]) -> str:
    """Render the project's template of this name, or else the shipped one. Raises Refused, with the line, for a mistake."""
    return render_template_file(shipped_files.resolve_path(project, f"templates/{name}"), variables)
