"""The `init` and `hosts.add` commands: create a project with a host and a suitable recipe, or add a host to a project."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from sparkwright import defaults
from sparkwright.app import prompts
from sparkwright.app.setup import proposal, survey
from sparkwright.app.setup.proposal import Choice, NewHost
from sparkwright.console import grid
from sparkwright.console.out import folded, say, say_json, say_prose, width
from sparkwright.console.terminal import terminal
from sparkwright.errors import Exit, Failed, Refused, Unreachable
from sparkwright.host.state import write_atomically
from sparkwright.project import recipe, shipped_files, starter
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe import Recipe
from sparkwright.remote import find
from sparkwright.remote.find import Candidate
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.sandbox import memory
from sparkwright.shell import join

#: the starter's example, which is not one of the user's hosts
EXAMPLE = "hosts/spark1.yml"
#: port in hosts/sandbox.yml
SANDBOX_PORT = 18471


def create_by_questions(folder: Path) -> Exit:
    """Ask for the host, the recipe and confirmation, and write the files. Nothing is written after Ctrl-C or a no."""
    starter.refuse_project(folder)
    host = ask_which(sandbox=True)
    found = _chosen(host, named="", asking=True, offline=False)
    texts, without = _texts(found)
    count = len(starter.planned(texts, without)) + (not (folder / ".gitignore").exists())
    own = f"hosts/{found.host.name}.yml"
    what = (
        f"{own} ({found.host.recipe or 'no recipe'}, group {', '.join(found.host.groups)})" if _is_real(found) else own
    )
    if not prompts.agree(f"Write {what} and {count - 1} more files to {folder.resolve()}?"):
        say("Nothing was written.")
        return Exit.OK
    return _write(folder, found)


def create_from_options(folder: Path, host: NewHost, *, named: str, offline: bool) -> Exit:
    """Create the project without questions.

    Args:
        named: name of the recipe; empty for the best one that fits.
        offline: do not contact the host.

    Raises:
        Unreachable: the host can't be surveyed; nothing is written then.
        Refused: the folder, the host or the recipe is unsuitable; nothing is written then.
    """
    starter.refuse_project(folder)
    proposal.refuse_name(host.name)
    if named:
        recipe.load(shipped_files.source(), named)
    found = _chosen(host, named=named, asking=False, offline=offline)
    return _write(folder, found)


def _chosen(host: NewHost, *, named: str, asking: bool, offline: bool) -> SurveyedHost:
    recipes = [recipe.load(shipped_files.source(), name) for name in recipe.names(shipped_files.source())]
    reserve = defaults.RESERVE_GIB
    return chosen(host, recipes, reserve_gib=reserve, named=named, asking=asking, offline=offline)


def _is_real(found: SurveyedHost) -> bool:
    return found.host.address != SANDBOX


def _texts(found: SurveyedHost) -> tuple[dict[str, str], set[str]]:
    """Return the texts that differ from the starter's files, by path, and the paths of files to omit."""
    top, host, choice = shipped_files.source(), found.host, found.choice
    if not _is_real(found):
        sandbox = f"hosts/{SANDBOX}.yml"
        text = proposal.with_recipe((top / sandbox).read_text(), host.recipe)
        return {sandbox: proposal.with_port(text, _free_port())}, {EXAMPLE}
    groups = (top / "hosts/groups.yml").read_text()
    texts = {
        f"hosts/{host.name}.yml": proposal.host_text(host, found.lines, "init"),
        "hosts/groups.yml": proposal.with_groups(groups, {proposal.GROUP: {}}, host.groups),
    }
    if choice is not None and choice.moved:
        name = f"recipes/{choice.name}.yml"
        texts[name] = proposal.with_dir((top / name).read_text(), choice.moved, host.name)
    return texts, {EXAMPLE} - set(texts)


def _free_port() -> int:
    """Return the sandbox's usual port, or a nearby one if another project's sandbox uses it."""
    for port in range(SANDBOX_PORT, SANDBOX_PORT + 500, 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return SANDBOX_PORT


def _write(folder: Path, found: SurveyedHost) -> Exit:
    texts, without = _texts(found)
    written = starter.lay(folder, texts, without)
    say(f"{len(written)} files: hosts/, recipes/, tasks.py")
    for name in texts:
        say(f"  {name}")
    show_notes(found)
    show_next(found, folder)
    return Exit.OK


def show_notes(found: SurveyedHost) -> None:
    """Print how model files that are already on the host will be used."""
    choice, seen = found.choice, found.survey
    if choice is not None and choice.moved:
        say_prose(
            f"The model is taken from {choice.moved}: a deploy verifies its files and downloads only what is missing."
        )
    if choice is not None and choice.found and choice.found["place"] == "hub cache":
        own, cached = choice.recipe.file.model.dir, str(choice.found["dir"])
        say_prose("The model is in the hub's cache there. To have it without a download or more disk, run on the host:")
        own = own if own.startswith("/") else f"$HOME/{own.removeprefix('~/')}"
        say(f'  mkdir -p "{own}" && cp -rlLT {join([cached])} "{own}"')
    running = survey.servers(seen) if seen else []
    for line in running:
        say_prose(
            f"{line[0].upper()}{line[1:]}. A deploy leaves it alone unless the recipe has its name; it holds memory and its port."
        )
    for server in seen["servers"] if seen else ():
        if not server["verified"]:
            words = ["recipe.import", "--from-host", found.host.name, "--container", str(server["name"])]
            say_prose(f"To take {server['name']} over without a restart: `invoke {join(words)}`.")


def show_next(found: SurveyedHost, folder: Path) -> None:
    """Print the next commands."""
    lacks = bool(found.survey and survey.missing(found.survey)) or (found.survey is None and _is_real(found))
    commands = ("doctor", "provision", "deploy") if lacks else ("plan", "deploy", "client")
    why = {
        "doctor": "what the host lacks, and the command that fixes it",
        "provision": "docker group, model folder",
        "plan": "what would change",
        "deploy": "serve, and prove it with generated tokens",
        "client": "base URL, model name and key for your programs",
    }
    say("\nNext:")
    if folder.resolve() != Path.cwd().resolve():
        say(f"  {join(['cd', folder])}")
    for command in commands:
        typed = f"sparkwright {command} --host {found.host.name}"
        room = width()
        first, *rest = folded(why[command], room and max(grid.LEAST_BELOW, room - len(f"  {typed:<40} # ")))
        say("\n".join([f"  {typed:<40} # {first}", *(f"  {'':<40} # {line}" for line in rest)]))


def named_host(address: str, *, name: str = "", user: str = "", groups: tuple[str, ...] = ()) -> NewHost:
    """Return the host that the options describe. Raises Refused for invalid options."""
    host = NewHost.typed(address)
    host = replace(host, name=name or host.name, user=user or host.user, groups=groups or host.groups)
    for group in host.groups:
        proposal.refuse_name(group, "group")
    proposal.refuse_name(host.name)
    return host


SANDBOX = "sandbox"
#: survey of a sandbox that has not been started yet
SIMULATED: dict[str, Any] = {"memory_bytes": memory.TOTAL, "models": [], "servers": []}
CANDIDATES = grid.columns(("", 0), ("HOST", 0), ("FOUND IN", 0))
CHOICES = grid.columns(("", 0), ("RECIPE", 0), ("ON DISK", 1), ("FITS", 0), ("MEMORY", 0))
#: verdicts in the table
FITS = {"fits": "yes", "unknown": "unknown", "too large": "no"}
#: limit on listed recipes; others can be typed
MOST = 9


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """A host selected for the project, with its survey."""

    host: NewHost
    #: the host's answer; None if it was not surveyed
    survey: dict[str, Any] | None
    #: the recipe for the host; None for no recipe
    choice: Choice | None

    @property
    def lines(self) -> list[str]:
        """The survey's results, one sentence each."""
        return [] if self.survey is None else survey.lines(self.survey)


def ask_which(*, sandbox: bool) -> NewHost:
    """Find hosts, list them, and ask which one to use.

    Args:
        sandbox: include the simulated host.
    """
    with terminal().status("Looking for hosts: ssh configuration, known_hosts, mDNS (2 s)"):
        rows = find.find_candidates(Path.home() / ".ssh")[: find.MOST]
    rows += [Candidate(SANDBOX, "this machine: a simulated Spark, to try it without hardware")] if sandbox else []
    grid.show_plain_table(
        CANDIDATES, [(str(n), candidate.address, candidate.source) for n, candidate in enumerate(rows, start=1)]
    )
    question = "Which host? A number, or USER@ADDRESS"
    while True:
        answer = prompts.choose(question, [candidate.address for candidate in rows]) if rows else prompts.ask(question)
        if answer:
            try:
                return NewHost.typed(answer)
            except Refused as error:
                say_prose(error)


def see(host: NewHost, recipes: Sequence[Recipe], *, asking: bool) -> dict[str, Any] | None:
    """Log in and survey the host. Raises Unreachable if it can't be surveyed.

    Returns None if the user chose to continue without a survey.
    """
    as_host = Host(name=host.name, address=host.address, user=host.user, port=host.port)
    if not asking:
        return survey.of(as_host, recipes, lambda error: False)
    say_prose(
        f"Logging in to {host.address}. The first time this copies sparkwright's runtime there (about 11 MB, no root)."
    )
    try:
        return survey.of(as_host, recipes, _accepted)
    except Unreachable as error:
        say_prose(error)
        if survey.refused(error):
            to = f"{host.user}@{host.address}" if host.user else host.address
            say(f"To copy your key there: {join(['ssh-copy-id', *(['-p', host.port] if host.port else []), to])}")
        if isinstance(error, UnknownKey) or not prompts.agree("Write its file without a survey?", default=False):
            raise Unreachable("nothing was written.", where=host.address) from None
    return None


def choose(
    recipes: Sequence[Recipe], seen: dict[str, Any] | None, reserve_gib: float, *, named: str, asking: bool
) -> Choice | None:
    """Return the recipe for a host. Raises Refused for a named recipe that does not fit its memory.

    Args:
        named: recipe that the user named, in which case nothing is asked; empty for none.
    """
    rows = proposal.choices(recipes, seen, reserve_gib)
    if named:
        choice = next((choice for choice in rows if choice.name == named), None)
        if choice is not None and choice.verdict == "too large":
            ways = [f"set {choice.fit.largest.replace(' ', ' to ')} in the recipe"] if choice.fit.largest else []
            ways += ["name another recipe", "leave --recipe out"]
            fix = f"{', '.join(ways[:-1])}, or {ways[-1]}."
            raise Refused(f"{named} does not fit: {choice.why}.", fix=fix[0].upper() + fix[1:])
        return choice
    fitting = [choice for choice in rows if choice.verdict != "too large"]
    if not asking or not fitting:
        return next(iter(fitting), None)
    shown = fitting[:MOST]
    grid.show_plain_table(
        CHOICES,
        [
            (str(n), choice.name, choice.on_disk, FITS[choice.verdict], choice.why)
            for n, choice in enumerate(shown, start=1)
        ],
    )
    if len(rows) > len(fitting):
        say_prose(f"Too large for this host: {', '.join(choice.name for choice in rows if choice not in fitting)}.")
    name = prompts.choose_one_of("Which recipe?", [choice.name for choice in shown])
    return next(choice for choice in shown if choice.name == name)


def chosen(
    host: NewHost,
    recipes: Sequence[Recipe],
    *,
    reserve_gib: float,
    named: str,
    asking: bool,
    offline: bool,
    quiet: bool = False,
) -> SurveyedHost:
    """Survey a host, show the results, and select its recipe.

    Args:
        quiet: print only errors, for use by a program.
    """
    simulated = host.address == SANDBOX
    seen = None if offline or simulated else see(host, recipes, asking=asking)
    if seen is not None and not quiet:
        for line in survey.lines(seen):
            say_prose(f"  {line}")
    choice = choose(recipes, SIMULATED if simulated else seen, reserve_gib, named=named, asking=asking)
    if choice is not None and choice.fit.budget is not None and not quiet:
        say(f"The memory of {choice.name}:")
        for line in choice.fit.budget.lines():
            say_prose(f"  {line}")
    return SurveyedHost(replace(host, recipe=choice.name if choice else ""), seen, choice)


def _accepted(error: UnknownKey) -> bool:
    """Ask whether to accept a host key, with ssh's wording."""
    key, target = error.key, error.target
    say(f"The authenticity of host '{target.known_as}' can't be established.")
    say_prose(f"{key.get_name()} key fingerprint is {host_keys.fingerprint(key)}. Compare it with the host's own:")
    say("  for f in /etc/ssh/ssh_host_*.pub; do ssh-keygen -lf $f; done")
    return prompts.typed_yes("Does it match, and should it be added to known_hosts?")


def add(host: NewHost | None, *, named: str, asking: bool, offline: bool, json: bool) -> Exit:
    """Survey a host, select its recipe, and write hosts/NAME.yml and its groups.

    Args:
        host: None to ask for it.

    Raises:
        Refused: the name is taken; nothing is done then.
        Unreachable: the host can't be surveyed, and there is no user to confirm to continue.
    """
    project = Project.here()
    inventory = Inventory.load(project.root)
    host = host or ask_which(sandbox=False)
    proposal.refuse_name(host.name)
    path = project.root / "hosts" / f"{host.name}.yml"
    if host.name in inventory.hosts or host.name in inventory.groups or path.exists():
        what = "group" if host.name in inventory.groups else "host"
        raise Refused(
            f"there is a {what} {host.name} already.", fix="Give another name: `hosts.add NAME --address ADDRESS`."
        )
    recipes = [recipe.load(project.root, item) for item in recipe.names(project.root)]
    if named:
        recipe.load(project.root, named)
    reserve = _reserve_gib(inventory)
    how = {"asking": asking, "offline": offline, "quiet": json}
    found = chosen(host, recipes, reserve_gib=reserve, named=named, **how)
    if asking and not prompts.agree(f"Write hosts/{found.host.name}.yml ({found.host.recipe or 'no recipe'})?"):
        say("Nothing was written.")
        return Exit.OK
    written = _write_host(project.root, found.host, found.lines)
    if json:
        about = {"host": found.host.name, "address": found.host.address, "recipe": found.host.recipe or None}
        budget = found.choice.fit.budget.to_json() if found.choice and found.choice.fit.budget else None
        groups = list(found.host.groups)
        say_json({**about, "groups": groups, "files": written, "survey": found.survey, "budget": budget})
        return Exit.OK
    for name in written:
        say(name)
    if found.choice is not None and found.choice.moved:
        say_prose(
            f"It has the model in {found.choice.moved}: set `model.dir` of recipes/{found.choice.name}.yml to take it from there."
        )
        found = replace(found, choice=replace(found.choice, found=None))
    show_notes(found)
    show_next(found, Path.cwd())
    return Exit.OK


def _reserve_gib(inventory: Inventory) -> float:
    """Return the memory to leave free, in GiB, which is the largest reserve of the project's hosts."""
    given = [host.vars.get("reserve_gib") for host in inventory.hosts.values()]
    figures = [float(item) for item in given if isinstance(item, int | float)]
    return max(figures, default=float(recipe.DEFAULTS["reserve_gib"]))


def _write_host(root: Path, host: NewHost, lines: list[str]) -> list[str]:
    """Write the host's file, and groups.yml for a new group. They are reverted if the project can't be read with them."""
    own, groups = root / "hosts" / f"{host.name}.yml", root / "hosts/groups.yml"
    before = groups.read_text() if groups.exists() else ""
    after = proposal.with_groups(before, yaml.safe_load(before) or {}, host.groups)
    changed = [groups] if after != before and _is_new(before, host.groups) else []
    try:
        if changed:
            write_atomically(groups, after.encode(), mode=0o644)
        write_atomically(own, proposal.host_text(host, lines, "hosts.add").encode(), mode=0o644)
        Inventory.load(root)
    except BaseException as error:
        own.unlink(missing_ok=True)
        if changed and before:
            write_atomically(groups, before.encode(), mode=0o644)
        elif changed:
            groups.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Failed(f"{error.filename}: {error.strerror}.", fix="Nothing was written.") from None
        raise
    return [f"hosts/{path.name}" for path in (own, *changed)]


def _is_new(text: str, groups: tuple[str, ...]) -> bool:
    return any(group not in (yaml.safe_load(text) or {}) for group in groups)
