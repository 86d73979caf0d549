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
from sparkwright.console.command_output import print_json_line, print_prose, print_text, terminal_width, wrap_sentence
from sparkwright.console.terminal import build_console
from sparkwright.errors import Exit, Failed, Refused, Unreachable
from sparkwright.host.state import write_atomically
from sparkwright.project import recipe, shipped_files, starter
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe import Recipe
from sparkwright.remote import discovery
from sparkwright.remote.discovery import Candidate
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.sandbox import memory
from sparkwright.shell import join

#: the starter's example, which is not one of the user's hosts
EXAMPLE_HOST_FILE = "hosts/spark1.yml"
#: port in hosts/sandbox.yml
SANDBOX_PORT = 18471


def create_interactively(folder: Path) -> Exit:
    """Ask for the host, the recipe and confirmation, and write the files. Nothing is written after Ctrl-C or a no."""
    starter.refuse_existing_project(folder)
    host = ask_for_host(sandbox=True)
    surveyed = _survey_with_shipped_recipes(host, recipe_name="", interactive=True, offline=False)
    texts, omitted = _changed_texts(surveyed)
    count = len(starter.plan_files(texts, omitted)) + (not (folder / ".gitignore").exists())
    host_file = f"hosts/{surveyed.host.name}.yml"
    description = (
        f"{host_file} ({surveyed.host.recipe or 'no recipe'}, group {', '.join(surveyed.host.groups)})"
        if _is_hardware(surveyed)
        else host_file
    )
    if not prompts.ask_yes_no(f"Write {description} and {count - 1} more files to {folder.resolve()}?"):
        print_text("Nothing was written.")
        return Exit.OK
    return _write_project(folder, surveyed)


def create_from_options(folder: Path, host: NewHost, *, recipe_name: str, offline: bool) -> Exit:
    """Create the project without questions.

    Args:
        recipe_name: name of the recipe; empty for the best one that fits.
        offline: do not contact the host.

    Raises:
        Unreachable: the host can't be surveyed; nothing is written then.
        Refused: the folder, the host or the recipe is unsuitable; nothing is written then.
    """
    starter.refuse_existing_project(folder)
    proposal.refuse_name(host.name)
    if recipe_name:
        recipe.load(shipped_files.shipped_folder(), recipe_name)
    surveyed = _survey_with_shipped_recipes(host, recipe_name=recipe_name, interactive=False, offline=offline)
    return _write_project(folder, surveyed)


def _survey_with_shipped_recipes(host: NewHost, *, recipe_name: str, interactive: bool, offline: bool) -> SurveyedHost:
    recipes = [
        recipe.load(shipped_files.shipped_folder(), name) for name in recipe.names(shipped_files.shipped_folder())
    ]
    reserve = defaults.RESERVE_GIB
    return survey_and_choose(
        host, recipes, reserve_gib=reserve, recipe_name=recipe_name, interactive=interactive, offline=offline
    )


def _is_hardware(surveyed: SurveyedHost) -> bool:
    return surveyed.host.address != SANDBOX


def _changed_texts(surveyed: SurveyedHost) -> tuple[dict[str, str], set[str]]:
    """Return the texts that differ from the starter's files, by path, and the paths of files to omit."""
    top, host, choice = shipped_files.shipped_folder(), surveyed.host, surveyed.choice
    if not _is_hardware(surveyed):
        sandbox = f"hosts/{SANDBOX}.yml"
        text = proposal.set_recipe((top / sandbox).read_text(), host.recipe)
        return {sandbox: proposal.set_serve_port(text, _find_free_port())}, {EXAMPLE_HOST_FILE}
    groups = (top / "hosts/groups.yml").read_text()
    texts = {
        f"hosts/{host.name}.yml": proposal.render_host_file(host, surveyed.lines, "init"),
        "hosts/groups.yml": proposal.add_groups(groups, {proposal.DEFAULT_GROUP: {}}, host.groups),
    }
    if choice is not None and choice.actual_folder:
        name = f"recipes/{choice.name}.yml"
        texts[name] = proposal.set_model_dir((top / name).read_text(), choice.actual_folder, host.name)
    return texts, {EXAMPLE_HOST_FILE} - set(texts)


def _find_free_port() -> int:
    """Return the sandbox's usual port, or a nearby one if another project's sandbox uses it."""
    for port in range(SANDBOX_PORT, SANDBOX_PORT + 500, 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return SANDBOX_PORT


def _write_project(folder: Path, surveyed: SurveyedHost) -> Exit:
    texts, omitted = _changed_texts(surveyed)
    written = starter.write_starter(folder, texts, omitted)
    print_text(f"{len(written)} files: hosts/, recipes/, tasks.py")
    for name in texts:
        print_text(f"  {name}")
    print_notes(surveyed)
    print_next_steps(surveyed, folder)
    return Exit.OK


def print_notes(surveyed: SurveyedHost) -> None:
    """Print how model files that are already on the host will be used."""
    choice, answer = surveyed.choice, surveyed.survey
    if choice is not None and choice.actual_folder:
        print_prose(
            f"The model is taken from {choice.actual_folder}: a deploy verifies its files and downloads only what is missing."
        )
    if choice is not None and choice.local_copy and choice.local_copy["place"] == "hub cache":
        model_folder, cached = choice.recipe.file.model.dir, str(choice.local_copy["dir"])
        print_prose(
            "The model is in the hub's cache there. To have it without a download or more disk, run on the host:"
        )
        model_folder = model_folder if model_folder.startswith("/") else f"$HOME/{model_folder.removeprefix('~/')}"
        print_text(f'  mkdir -p "{model_folder}" && cp -rlLT {join([cached])} "{model_folder}"')
    running = survey.describe_servers(answer) if answer else []
    for line in running:
        print_prose(
            f"{line[0].upper()}{line[1:]}. A deploy leaves it alone unless the recipe has its name; it holds memory and its port."
        )
    for server in answer["servers"] if answer else ():
        if not server["verified"]:
            words = ["recipe.import", "--from-host", surveyed.host.name, "--container", str(server["name"])]
            print_prose(f"To take {server['name']} over without a restart: `invoke {join(words)}`.")


def print_next_steps(surveyed: SurveyedHost, folder: Path) -> None:
    """Print the next commands."""
    is_incomplete = bool(surveyed.survey and survey.list_missing(surveyed.survey)) or (
        surveyed.survey is None and _is_hardware(surveyed)
    )
    commands = ("doctor", "provision", "deploy") if is_incomplete else ("plan", "deploy", "client")
    purposes = {
        "doctor": "what the host lacks, and the command that fixes it",
        "provision": "docker group, model folder",
        "plan": "what would change",
        "deploy": "serve, and prove it with generated tokens",
        "client": "base URL, model name and key for your programs",
    }
    print_text("\nNext:")
    if folder.resolve() != Path.cwd().resolve():
        print_text(f"  {join(['cd', folder])}")
    for command in commands:
        command_line = f"sparkwright {command} --host {surveyed.host.name}"
        columns = terminal_width()
        first, *rest = wrap_sentence(
            purposes[command], columns and max(grid.MIN_SENTENCE_WIDTH_BELOW, columns - len(f"  {command_line:<40} # "))
        )
        print_text("\n".join([f"  {command_line:<40} # {first}", *(f"  {'':<40} # {line}" for line in rest)]))


def host_from_options(address: str, *, name: str = "", user: str = "", groups: tuple[str, ...] = ()) -> NewHost:
    """Return the host that the options describe. Raises Refused for invalid options."""
    host = NewHost.parse_address(address)
    host = replace(host, name=name or host.name, user=user or host.user, groups=groups or host.groups)
    for group in host.groups:
        proposal.refuse_name(group, "group")
    proposal.refuse_name(host.name)
    return host


SANDBOX = "sandbox"
#: survey of a sandbox that has not been started yet
SANDBOX_SURVEY: dict[str, Any] = {"memory_bytes": memory.TOTAL_BYTES, "models": [], "servers": []}
CANDIDATE_COLUMNS = grid.columns(("", 0), ("HOST", 0), ("FOUND IN", 0))
CHOICE_COLUMNS = grid.columns(("", 0), ("RECIPE", 0), ("ON DISK", 1), ("FITS", 0), ("MEMORY", 0))
#: verdicts in the table
FIT_LABELS = {"fits": "yes", "unknown": "unknown", "too large": "no"}
#: limit on listed recipes; others can be typed
MAX_LISTED_RECIPES = 9


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
        return [] if self.survey is None else survey.format_lines(self.survey)


def ask_for_host(*, sandbox: bool) -> NewHost:
    """Find hosts, list them, and ask which one to use.

    Args:
        sandbox: include the simulated host.
    """
    with build_console().status("Looking for hosts: ssh configuration, known_hosts, mDNS (2 s)"):
        rows = discovery.find_candidates(Path.home() / ".ssh")[: discovery.MAX_SHOWN]
    rows += [Candidate(SANDBOX, "this machine: a simulated Spark, to try it without hardware")] if sandbox else []
    grid.print_table(
        CANDIDATE_COLUMNS, [(str(n), candidate.address, candidate.source) for n, candidate in enumerate(rows, start=1)]
    )
    question = "Which host? A number, or USER@ADDRESS"
    while True:
        answer = prompts.choose(question, [candidate.address for candidate in rows]) if rows else prompts.ask(question)
        if answer:
            try:
                return NewHost.parse_address(answer)
            except Refused as error:
                print_prose(error)


def log_in_and_survey(host: NewHost, recipes: Sequence[Recipe], *, interactive: bool) -> dict[str, Any] | None:
    """Log in and survey the host. Raises Unreachable if it can't be surveyed.

    Returns None if the user chose to continue without a survey.
    """
    as_host = Host(name=host.name, address=host.address, user=host.user, port=host.port)
    if not interactive:
        return survey.query_host(as_host, recipes, lambda error: False)
    print_prose(
        f"Logging in to {host.address}. The first time this copies sparkwright's runtime there (about 11 MB, no root)."
    )
    try:
        return survey.query_host(as_host, recipes, _ask_to_accept_key)
    except Unreachable as error:
        print_prose(error)
        if survey.is_key_refused(error):
            login = f"{host.user}@{host.address}" if host.user else host.address
            print_text(
                f"To copy your key there: {join(['ssh-copy-id', *(['-p', host.port] if host.port else []), login])}"
            )
        if isinstance(error, UnknownKey) or not prompts.ask_yes_no("Write its file without a survey?", default=False):
            raise Unreachable("nothing was written.", where=host.address) from None
    return None


def choose_recipe(
    recipes: Sequence[Recipe], answer: dict[str, Any] | None, reserve_gib: float, *, recipe_name: str, interactive: bool
) -> Choice | None:
    """Return the recipe for a host. Raises Refused for a named recipe that does not fit its memory.

    Args:
        recipe_name: recipe that the user named, in which case nothing is asked; empty for none.
    """
    rows = proposal.propose_recipes(recipes, answer, reserve_gib)
    if recipe_name:
        choice = next((choice for choice in rows if choice.name == recipe_name), None)
        if choice is not None and choice.verdict == "too large":
            suggestions = [f"set {choice.fit.largest.replace(' ', ' to ')} in the recipe"] if choice.fit.largest else []
            suggestions += ["name another recipe", "leave --recipe out"]
            fix = f"{', '.join(suggestions[:-1])}, or {suggestions[-1]}."
            raise Refused(f"{recipe_name} does not fit: {choice.why}.", fix=fix[0].upper() + fix[1:])
        return choice
    fitting = [choice for choice in rows if choice.verdict != "too large"]
    if not interactive or not fitting:
        return next(iter(fitting), None)
    listed = fitting[:MAX_LISTED_RECIPES]
    grid.print_table(
        CHOICE_COLUMNS,
        [
            (str(n), choice.name, choice.on_disk, FIT_LABELS[choice.verdict], choice.why)
            for n, choice in enumerate(listed, start=1)
        ],
    )
    if len(rows) > len(fitting):
        print_prose(f"Too large for this host: {', '.join(choice.name for choice in rows if choice not in fitting)}.")
    name = prompts.choose_exactly("Which recipe?", [choice.name for choice in listed])
    return next(choice for choice in listed if choice.name == name)


def survey_and_choose(
    host: NewHost,
    recipes: Sequence[Recipe],
    *,
    reserve_gib: float,
    recipe_name: str,
    interactive: bool,
    offline: bool,
    quiet: bool = False,
) -> SurveyedHost:
    """Survey a host, show the results, and select its recipe.

    Args:
        quiet: print only errors, for use by a program.
    """
    is_sandbox = host.address == SANDBOX
    answer = None if offline or is_sandbox else log_in_and_survey(host, recipes, interactive=interactive)
    if answer is not None and not quiet:
        for line in survey.format_lines(answer):
            print_prose(f"  {line}")
    choice = choose_recipe(
        recipes, SANDBOX_SURVEY if is_sandbox else answer, reserve_gib, recipe_name=recipe_name, interactive=interactive
    )
    if choice is not None and choice.fit.budget is not None and not quiet:
        print_text(f"The memory of {choice.name}:")
        for line in choice.fit.budget.lines():
            print_prose(f"  {line}")
    return SurveyedHost(replace(host, recipe=choice.name if choice else ""), answer, choice)


def _ask_to_accept_key(error: UnknownKey) -> bool:
    """Ask whether to accept a host key, with ssh's wording."""
    key, target = error.key, error.target
    print_text(f"The authenticity of host '{target.host_key_name}' can't be established.")
    print_prose(f"{key.get_name()} key fingerprint is {host_keys.fingerprint(key)}. Compare it with the host's own:")
    print_text("  for f in /etc/ssh/ssh_host_*.pub; do ssh-keygen -lf $f; done")
    return prompts.ask_full_yes("Does it match, and should it be added to known_hosts?")


def add_host(host: NewHost | None, *, recipe_name: str, interactive: bool, offline: bool, json: bool) -> Exit:
    """Survey a host, select its recipe, and write hosts/NAME.yml and its groups.

    Args:
        host: None to ask for it.

    Raises:
        Refused: the name is taken; nothing is done then.
        Unreachable: the host can't be surveyed, and there is no user to confirm to continue.
    """
    project = Project.here()
    inventory = Inventory.load(project.root)
    host = host or ask_for_host(sandbox=False)
    proposal.refuse_name(host.name)
    path = project.root / "hosts" / f"{host.name}.yml"
    if host.name in inventory.hosts or host.name in inventory.groups or path.exists():
        kind = "group" if host.name in inventory.groups else "host"
        raise Refused(
            f"there is a {kind} {host.name} already.", fix="Give another name: `hosts.add NAME --address ADDRESS`."
        )
    recipes = [recipe.load(project.root, item) for item in recipe.names(project.root)]
    if recipe_name:
        recipe.load(project.root, recipe_name)
    reserve = _reserve_gib(inventory)
    survey_options = {"interactive": interactive, "offline": offline, "quiet": json}
    surveyed = survey_and_choose(host, recipes, reserve_gib=reserve, recipe_name=recipe_name, **survey_options)
    if interactive and not prompts.ask_yes_no(
        f"Write hosts/{surveyed.host.name}.yml ({surveyed.host.recipe or 'no recipe'})?"
    ):
        print_text("Nothing was written.")
        return Exit.OK
    written = _write_host(project.root, surveyed.host, surveyed.lines)
    if json:
        host_fields = {
            "host": surveyed.host.name,
            "address": surveyed.host.address,
            "recipe": surveyed.host.recipe or None,
        }
        budget = surveyed.choice.fit.budget.to_json() if surveyed.choice and surveyed.choice.fit.budget else None
        groups = list(surveyed.host.groups)
        print_json_line(
            {**host_fields, "groups": groups, "files": written, "survey": surveyed.survey, "budget": budget}
        )
        return Exit.OK
    for name in written:
        print_text(name)
    if surveyed.choice is not None and surveyed.choice.actual_folder:
        print_prose(
            f"It has the model in {surveyed.choice.actual_folder}: set `model.dir` of recipes/{surveyed.choice.name}.yml to "
            "take it from there."
        )
        surveyed = replace(surveyed, choice=replace(surveyed.choice, local_copy=None))
    print_notes(surveyed)
    print_next_steps(surveyed, Path.cwd())
    return Exit.OK


def _reserve_gib(inventory: Inventory) -> float:
    """Return the memory to leave free, in GiB, which is the largest reserve of the project's hosts."""
    values = [host.vars.get("reserve_gib") for host in inventory.hosts.values()]
    figures = [float(item) for item in values if isinstance(item, int | float)]
    return max(figures, default=float(recipe.DEFAULTS["reserve_gib"]))


def _write_host(root: Path, host: NewHost, lines: list[str]) -> list[str]:
    """Write the host's file, and groups.yml for a new group. They are reverted if the project can't be read with them."""
    host_file, groups = root / "hosts" / f"{host.name}.yml", root / "hosts/groups.yml"
    before = groups.read_text() if groups.exists() else ""
    known_groups = yaml.safe_load(before) or {}
    after = proposal.add_groups(before, known_groups, host.groups)
    changed = [groups] if after != before and any(group not in known_groups for group in host.groups) else []
    try:
        if changed:
            write_atomically(groups, after.encode(), mode=0o644)
        write_atomically(host_file, proposal.render_host_file(host, lines, "hosts.add").encode(), mode=0o644)
        Inventory.load(root)
    except BaseException as error:
        host_file.unlink(missing_ok=True)
        if changed and before:
            write_atomically(groups, before.encode(), mode=0o644)
        elif changed:
            groups.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Failed(f"{error.filename}: {error.strerror}.", fix="Nothing was written.") from None
        raise
    return [f"hosts/{path.name}" for path in (host_file, *changed)]
