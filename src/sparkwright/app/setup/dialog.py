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
from sparkwright.app.setup.proposal import NewHost, Proposal
from sparkwright.console import grid
from sparkwright.console.command_output import print_json_line, print_prose, print_text, terminal_width, wrap_sentence
from sparkwright.console.terminal import build_console
from sparkwright.errors import Exit, Failed, KeysRejected, Refused, Unreachable
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

#: file of the starter's example host, which a project with another host leaves out
EXAMPLE_HOST_FILE = "hosts/spark1.yml"
#: port in hosts/sandbox.yml
SANDBOX_PORT = 18471
#: address of the simulated host
SANDBOX_ADDRESS = "sandbox"
#: survey of a sandbox that has not been started yet
SANDBOX_SURVEY: dict[str, Any] = {"memory_bytes": memory.TOTAL_BYTES, "models": [], "servers": []}
CANDIDATE_COLUMNS = grid.columns(("", 0), ("HOST", 0), ("FOUND IN", 0))
PROPOSAL_COLUMNS = grid.columns(("", 0), ("RECIPE", 0), ("ON DISK", 1), ("FITS", 0), ("MEMORY", 0))
FIT_LABELS = {"fits": "yes", "unknown": "unknown", "too large": "no"}
#: number of recipes shown with their memory; the others are listed by number and name
MAX_RECIPE_ROWS = 9


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """A host to add, its survey and its recipe."""

    host: NewHost
    #: None if the host was not surveyed
    survey: dict[str, Any] | None
    #: None if no recipe was selected
    recipe_proposal: Proposal | None

    @property
    def lines(self) -> list[str]:
        """The survey as lines of text."""
        return [] if self.survey is None else survey.format_lines(self.survey)


def create_interactively(folder: Path) -> Exit:
    """Ask for the host and the recipe, and write the files after confirmation."""
    starter.refuse_existing_project(folder)
    host = ask_for_host(sandbox=True)
    surveyed = _survey_with_shipped_recipes(host, recipe_name="", interactive=True, offline=False)
    texts, omitted_paths = _changed_texts(surveyed)
    file_count = len(starter.plan_files(texts, omitted_paths)) + (not (folder / ".gitignore").exists())
    host_file = f"hosts/{surveyed.host.name}.yml"
    description = (
        f"{host_file} ({surveyed.host.recipe or 'no recipe'}, group {', '.join(surveyed.host.groups)})"
        if _is_hardware(surveyed)
        else host_file
    )
    if not prompts.ask_yes_no(f"Write {description} and {file_count - 1} more files to {folder.resolve()}?"):
        print_text("Nothing was written.")
        return Exit.OK
    return _write_project(folder, surveyed)


def create_from_options(folder: Path, host: NewHost, *, recipe_name: str, offline: bool) -> Exit:
    """Create the project without questions. Nothing is written if an error is raised.

    Args:
        recipe_name: empty to select the best recipe that fits.
        offline: do not contact the host.

    Raises:
        Unreachable: the host can't be surveyed.
        Refused: the folder, the host or the recipe is unsuitable.
    """
    starter.refuse_existing_project(folder)
    proposal.refuse_name(host.name)
    if recipe_name:
        _refuse_cluster_recipe(shipped_files.shipped_folder(), recipe_name)
    surveyed = _survey_with_shipped_recipes(host, recipe_name=recipe_name, interactive=False, offline=offline)
    return _write_project(folder, surveyed)


def _refuse_cluster_recipe(folder: Path, name: str) -> None:
    """Raise Refused if the recipe does not exist, or runs on a cluster instead of a single host."""
    if recipe.load(folder, name).file.parallel is not None:
        raise Refused(
            f"recipe {name} runs on a cluster (it sets `parallel`), so --recipe can't select it for a single host.",
            fix="Add its hosts without --recipe, remove `recipe` from their files, and name it in the `cluster` of a group "
            "(hosts/groups.yml).",
        )


def _load_recipes(folder: Path, recipe_name: str) -> list[Recipe]:
    """Load the recipes in a folder's recipes/, and the named one, which may be in a subfolder (`examples/NAME`)."""
    names = recipe.names(folder)
    if recipe_name and recipe_name not in names:
        names.append(recipe_name)
    return [replace(recipe.load(folder, name), name=name) for name in names]


def _survey_with_shipped_recipes(host: NewHost, *, recipe_name: str, interactive: bool, offline: bool) -> SurveyedHost:
    folder = shipped_files.shipped_folder()
    return survey_and_choose(
        host,
        _load_recipes(folder, recipe_name),
        reserve_gib=defaults.RESERVE_GIB,
        recipe_name=recipe_name,
        interactive=interactive,
        offline=offline,
    )


def _is_hardware(surveyed: SurveyedHost) -> bool:
    return surveyed.host.address != SANDBOX_ADDRESS


def _changed_texts(surveyed: SurveyedHost) -> tuple[dict[str, str], set[str]]:
    """Return the files whose text differs from the starter's, by path, and the paths to leave out."""
    shipped_folder, host, recipe_proposal = shipped_files.shipped_folder(), surveyed.host, surveyed.recipe_proposal
    if not _is_hardware(surveyed):
        sandbox_file = f"hosts/{SANDBOX_ADDRESS}.yml"
        text = (shipped_folder / sandbox_file).read_text()
        return {sandbox_file: proposal.set_recipe_and_port(text, host.recipe, _find_free_port())}, {EXAMPLE_HOST_FILE}
    groups = (shipped_folder / "hosts/groups.yml").read_text()
    texts = {
        f"hosts/{host.name}.yml": proposal.render_host_file(host, surveyed.lines, "init"),
        "hosts/groups.yml": proposal.add_groups(groups, {proposal.DEFAULT_GROUP: {}}, host.groups),
    }
    if recipe_proposal is not None and recipe_proposal.model_dir_override:
        name = f"recipes/{recipe_proposal.name}.yml"
        texts[name] = proposal.set_model_dir(
            (shipped_folder / name).read_text(), recipe_proposal.model_dir_override, host.name
        )
    return texts, {EXAMPLE_HOST_FILE} - set(texts)


def _find_free_port() -> int:
    """Return the sandbox's usual port, or a nearby free one if another project's sandbox uses it."""
    for port in range(SANDBOX_PORT, SANDBOX_PORT + 500, 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return SANDBOX_PORT


def _write_project(folder: Path, surveyed: SurveyedHost) -> Exit:
    texts, omitted_paths = _changed_texts(surveyed)
    written_files = starter.write_starter(folder, texts, omitted_paths)
    print_text(f"{len(written_files)} files: hosts/, recipes/, tasks.py")
    for name in texts:
        print_text(f"  {name}")
    print_notes(surveyed)
    print_next_steps(surveyed, folder)
    return Exit.OK


def print_notes(surveyed: SurveyedHost) -> None:
    """Print how the host's model files will be used, and how running servers are affected."""
    recipe_proposal, host_survey = surveyed.recipe_proposal, surveyed.survey
    if recipe_proposal is not None and recipe_proposal.model_dir_override:
        print_prose(
            f"The model in {recipe_proposal.model_dir_override} is used: a deploy verifies its files and downloads only "
            "missing ones."
        )
    if (
        recipe_proposal is not None
        and recipe_proposal.local_copy
        and recipe_proposal.local_copy["place"] == "hub cache"
    ):
        model_folder, cached_folder = recipe_proposal.recipe.file.model.dir, str(recipe_proposal.local_copy["dir"])
        print_prose(
            "The model is in the host's hub cache. To use it without a download or extra disk space, run on the host:"
        )
        model_folder = model_folder if model_folder.startswith("/") else f"$HOME/{model_folder.removeprefix('~/')}"
        print_text(f'  mkdir -p "{model_folder}" && cp -rlLT {join([cached_folder])} "{model_folder}"')
    for line in survey.describe_servers(host_survey) if host_survey else ():
        print_prose(
            f"{line[0].upper()}{line[1:]}. It occupies memory and that port. A deploy leaves it running unless the recipe has "
            "the same name."
        )
    for server in host_survey["servers"] if host_survey else ():
        if not server["verified"]:
            command = ["recipe.import", "--from-host", surveyed.host.name, "--container", str(server["name"])]
            print_prose(f"To manage {server['name']} without restarting it: `invoke {join(command)}`.")


def print_next_steps(surveyed: SurveyedHost, folder: Path) -> None:
    """Print the next commands, which set the host up first if it was not surveyed or is not ready for a deploy."""
    is_incomplete = _is_hardware(surveyed) if surveyed.survey is None else not survey.is_ready(surveyed.survey)
    commands = ("doctor", "provision", "deploy") if is_incomplete else ("plan", "deploy", "client")
    purposes = {
        "doctor": "show what the host lacks and how to fix it",
        "provision": "set up the docker group and the model folder",
        "plan": "show what would change",
        "deploy": "start the server and verify that it generates",
        "client": "show base URL, model name and key for your programs",
    }
    print_text("\nNext:")
    if folder.resolve() != Path.cwd().resolve():
        print_text(f"  {join(['cd', folder])}")
    for command in commands:
        command_line = f"sparkwright {command} --host {surveyed.host.name}"
        columns = terminal_width()
        first_line, *further_lines = wrap_sentence(
            purposes[command], columns and max(grid.MIN_SENTENCE_WIDTH_BELOW, columns - len(f"  {command_line:<40} # "))
        )
        print_text(
            "\n".join([f"  {command_line:<40} # {first_line}", *(f"  {'':<40} # {line}" for line in further_lines)])
        )


def host_from_options(address: str, *, name: str, groups: tuple[str, ...]) -> NewHost:
    """Return the host described by the options. Raises Refused for invalid options."""
    host = NewHost.parse_address(address)
    host = replace(host, name=name or host.name, groups=groups or host.groups)
    for group in host.groups:
        proposal.refuse_name(group, "group")
    proposal.refuse_name(host.name)
    return host


def ask_for_host(*, sandbox: bool) -> NewHost:
    """Find hosts, list them, and ask which one to use. With `sandbox`, the simulated host is listed too."""
    with build_console().status("Looking for hosts: ssh configuration, known_hosts, mDNS (2 s)"):
        candidates = discovery.find_candidates(Path.home() / ".ssh")[: discovery.MAX_SHOWN_CANDIDATES]
    if sandbox:
        candidates.append(Candidate(SANDBOX_ADDRESS, "this machine: a simulated Spark, to try it without hardware"))
    rows = [(str(number), candidate.address, candidate.source) for number, candidate in enumerate(candidates, start=1)]
    grid.print_table(CANDIDATE_COLUMNS, rows)
    question, addresses = "Which host? A number, or USER@ADDRESS", [candidate.address for candidate in candidates]
    while True:
        answer = prompts.choose(question, addresses) if addresses else prompts.ask(question)
        if answer.isdecimal():
            print_text(f"{answer} is not in the list.")
        elif answer:
            try:
                return NewHost.parse_address(answer)
            except Refused as error:
                print_prose(error)


def log_in_and_survey(host: NewHost, recipes: Sequence[Recipe], *, interactive: bool) -> dict[str, Any] | None:
    """Log in and survey the host. Returns None if the survey failed and the user chose to continue.

    Raises Unreachable if the survey failed and the user declined, or could not be asked.
    """
    ssh_host = Host(name=host.name, address=host.address, user=host.user, port=host.port)
    if not interactive:
        return survey.query_host(ssh_host, recipes, lambda error: False)
    print_prose(
        f"Logging in to {host.address}. The first time this copies sparkwright's runtime there (about 11 MB, no root)."
    )
    try:
        return survey.query_host(ssh_host, recipes, _ask_to_accept_key)
    except Unreachable as error:
        print_prose(error)
        if isinstance(error, KeysRejected):
            login = f"{host.user}@{host.address}" if host.user else host.address
            command = ["ssh-copy-id", *(["-p", host.port] if host.port else []), login]
            print_text(f"To copy your key there: {join(command)}")
        if isinstance(error, UnknownKey) or not prompts.ask_yes_no(
            "Write the host's file without a survey?", default=False
        ):
            raise Unreachable("nothing was written.", where=host.address) from None
    return None


def choose_recipe(
    recipes: Sequence[Recipe],
    host_survey: dict[str, Any] | None,
    reserve_gib: float,
    *,
    recipe_name: str,
    interactive: bool,
) -> Proposal | None:
    """Return the recipe for a host, or None if none fits.

    Args:
        recipe_name: a recipe for a single host; empty to ask for one or, if not interactive, to use the best that fits.

    Raises:
        Refused: the named recipe does not fit the host's memory.
    """
    proposals = proposal.propose_recipes(recipes, host_survey, reserve_gib)
    if recipe_name:
        recipe_proposal = next(recipe_proposal for recipe_proposal in proposals if recipe_proposal.name == recipe_name)
        if recipe_proposal.verdict == "too large":
            suggestions = (
                [f"set {recipe_proposal.fit.largest_fitting_flag.replace(' ', ' to ')} in the recipe"]
                if recipe_proposal.fit.largest_fitting_flag
                else []
            )
            suggestions += ["name another recipe", "leave --recipe out"]
            fix = f"{', '.join(suggestions[:-1])}, or {suggestions[-1]}."
            raise Refused(f"{recipe_name} does not fit: {recipe_proposal.reason}.", fix=fix[0].upper() + fix[1:])
        return recipe_proposal
    fitting_proposals = [recipe_proposal for recipe_proposal in proposals if recipe_proposal.verdict != "too large"]
    if not interactive or not fitting_proposals:
        return fitting_proposals[0] if fitting_proposals else None
    rows = [
        (
            str(number),
            recipe_proposal.name,
            recipe_proposal.local_copy_text,
            FIT_LABELS[recipe_proposal.verdict],
            recipe_proposal.reason,
        )
        for number, recipe_proposal in enumerate(fitting_proposals, start=1)
    ]
    grid.print_table(PROPOSAL_COLUMNS, rows[:MAX_RECIPE_ROWS])
    if further_proposals := [f"{number} {name}" for number, name, *_ in rows[MAX_RECIPE_ROWS:]]:
        print_prose(f"More: {', '.join(further_proposals)}.")
    if too_large_names := [
        recipe_proposal.name for recipe_proposal in proposals if recipe_proposal not in fitting_proposals
    ]:
        print_prose(f"Too large for this host: {', '.join(too_large_names)}.")
    name = prompts.choose_exactly(
        "Which recipe? A number or a name", [recipe_proposal.name for recipe_proposal in fitting_proposals]
    )
    return next(recipe_proposal for recipe_proposal in fitting_proposals if recipe_proposal.name == name)


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
    is_sandbox = host.address == SANDBOX_ADDRESS
    host_survey = None if offline or is_sandbox else log_in_and_survey(host, recipes, interactive=interactive)
    if host_survey is not None and not quiet:
        for line in survey.format_lines(host_survey):
            print_prose(f"  {line}")
    recipe_proposal = choose_recipe(
        recipes,
        SANDBOX_SURVEY if is_sandbox else host_survey,
        reserve_gib,
        recipe_name=recipe_name,
        interactive=interactive,
    )
    if recipe_proposal is not None and recipe_proposal.fit.budget is not None and not quiet:
        print_text(f"The memory of {recipe_proposal.name}:")
        for line in recipe_proposal.fit.budget.lines():
            print_prose(f"  {line}")
    return SurveyedHost(
        replace(host, recipe=recipe_proposal.name if recipe_proposal else ""), host_survey, recipe_proposal
    )


def _ask_to_accept_key(error: UnknownKey) -> bool:
    """Ask whether to accept a host key, in ssh's words."""
    key, target = error.key, error.target
    print_text(f"The authenticity of host '{target.host_key_name}' can't be established.")
    print_prose(f"{key.get_name()} key fingerprint is {host_keys.fingerprint(key)}. On the host, compare it with:")
    print_text("  for f in /etc/ssh/ssh_host_*.pub; do ssh-keygen -lf $f; done")
    return prompts.ask_full_yes("Does it match, and should it be added to known_hosts?")


def add_host(host: NewHost | None, *, recipe_name: str, interactive: bool, offline: bool, json: bool) -> Exit:
    """Survey a host, select its recipe, and write hosts/NAME.yml and its groups.

    Args:
        host: None to ask which host to add.

    Raises:
        Refused: the name is already in use.
        Unreachable: the host can't be surveyed, and the user did not choose to continue without a survey.
    """
    project = Project.here()
    inventory = Inventory.load(project.root, may_be_empty=True)
    host = host or ask_for_host(sandbox=False)
    _refuse_host(host, project, inventory)
    if recipe_name:
        _refuse_cluster_recipe(project.root, recipe_name)
    surveyed = survey_and_choose(
        host,
        _load_recipes(project.root, recipe_name),
        reserve_gib=_max_reserve_gib(inventory),
        recipe_name=recipe_name,
        interactive=interactive,
        offline=offline,
        quiet=json,
    )
    if interactive and not prompts.ask_yes_no(
        f"Write hosts/{surveyed.host.name}.yml ({surveyed.host.recipe or 'no recipe'})?"
    ):
        print_text("Nothing was written.")
        return Exit.OK
    written_files = _write_host(project.root, surveyed.host, surveyed.lines)
    if json:
        print_json_line(_to_json(surveyed, written_files))
        return Exit.OK
    for name in written_files:
        print_text(name)
    if surveyed.recipe_proposal is not None and surveyed.recipe_proposal.model_dir_override:
        print_prose(
            f"The host has the model in {surveyed.recipe_proposal.model_dir_override}: to use it, set `model.dir` in "
            f"recipes/{surveyed.recipe_proposal.name}.yml."
        )
        surveyed = replace(surveyed, recipe_proposal=replace(surveyed.recipe_proposal, local_copy=None))
    print_notes(surveyed)
    print_next_steps(surveyed, Path.cwd())
    return Exit.OK


def _refuse_host(host: NewHost, project: Project, inventory: Inventory) -> None:
    """Raise Refused for a name that is invalid or in use, and for the sandbox."""
    proposal.refuse_name(host.name)
    if host.address == SANDBOX_ADDRESS:
        raise Refused(
            "the sandbox has no address to log in to.",
            fix="Copy hosts/sandbox.yml (`connection: sandbox`), or add two linked ones with `invoke sandbox.pair`.",
        )
    is_group = host.name in inventory.groups
    if is_group or host.name in inventory.hosts or (project.root / "hosts" / f"{host.name}.yml").exists():
        raise Refused(
            f"a {'group' if is_group else 'host'} named {host.name} already exists.",
            fix="Choose another name: `hosts.add NAME --address ADDRESS`.",
        )


def _to_json(surveyed: SurveyedHost, written_files: list[str]) -> dict[str, Any]:
    budget = surveyed.recipe_proposal.fit.budget if surveyed.recipe_proposal else None
    return {
        "host": surveyed.host.name,
        "address": surveyed.host.address,
        "recipe": surveyed.host.recipe or None,
        "groups": list(surveyed.host.groups),
        "files": written_files,
        "survey": surveyed.survey,
        "budget": budget.to_json() if budget else None,
    }


def _max_reserve_gib(inventory: Inventory) -> float:
    """Return the largest memory reserve of the project's hosts, in GiB; the default if none sets a number."""
    settings = [host.vars.get("reserve_gib") for host in inventory.hosts.values()]
    reserves = [float(reserve) for reserve in settings if isinstance(reserve, int | float)]
    return max(reserves, default=float(recipe.DEFAULTS["reserve_gib"]))


def _write_host(root: Path, host: NewHost, lines: list[str]) -> list[str]:
    """Write the host's file, and groups.yml for a new group. Both are reverted if the project can't be read afterwards."""
    host_path, groups_path = root / "hosts" / f"{host.name}.yml", root / "hosts/groups.yml"
    old_text = groups_path.read_text() if groups_path.exists() else ""
    known_groups = yaml.safe_load(old_text) or {}
    new_text = proposal.add_groups(old_text, known_groups, host.groups)
    changed_paths = (
        [groups_path] if new_text != old_text and any(group not in known_groups for group in host.groups) else []
    )
    try:
        if changed_paths:
            write_atomically(groups_path, new_text.encode(), mode=0o644)
        write_atomically(host_path, proposal.render_host_file(host, lines, "hosts.add").encode(), mode=0o644)
        Inventory.load(root)
    except BaseException as error:
        host_path.unlink(missing_ok=True)
        if changed_paths and old_text:
            write_atomically(groups_path, old_text.encode(), mode=0o644)
        elif changed_paths:
            groups_path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Failed(f"{error.filename}: {error.strerror}.", fix="Nothing was written.") from None
        raise
    return [f"hosts/{path.name}" for path in (host_path, *changed_paths)]
