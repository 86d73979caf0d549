"""The `init` command with a host: a new project with a suitable recipe, and the next commands."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright import defaults
from sparkwright.app.setup import files, proposal, questions, survey
from sparkwright.app.setup.files import NewHost
from sparkwright.app.setup.proposal import Choice
from sparkwright.console import grid
from sparkwright.console.out import say
from sparkwright.console.terminal import terminal
from sparkwright.errors import Exit, Refused, Unreachable
from sparkwright.project import recipe, shipped_files, starter
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.remote import find
from sparkwright.remote.find import Candidate
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.sandbox import memory
from sparkwright.shell import join

#: the starter's example, which is not a host of the user
EXAMPLE = "hosts/spark1.yml"
#: port in hosts/sandbox.yml
SANDBOX_PORT = 18471


def asked(folder: Path) -> Exit:
    """Ask for the host, the recipe, and the confirmation, and write the files. Nothing is written after Ctrl-C or a no."""
    starter.refuse_project(folder)
    host = ask_which(sandbox=True)
    found = _chosen(host, named="", asking=True, offline=False)
    texts, without = _texts(found)
    count = len(starter.planned(texts, without)) + (not (folder / ".gitignore").exists())
    own = f"hosts/{found.host.name}.yml"
    what = (
        f"{own} ({found.host.recipe or 'no recipe'}, group {', '.join(found.host.groups)})" if _is_real(found) else own
    )
    if not questions.agree(f"Write {what} and {count - 1} more files to {folder.resolve()}?"):
        say("Nothing was written.")
        return Exit.OK
    return _write(folder, found)


def given(folder: Path, host: NewHost, *, named: str, offline: bool) -> Exit:
    """Create the project without questions.

    Args:
        named: the recipe; empty for the best one that fits.
        offline: do not ask the host.

    Raises:
        Unreachable: the host can't be surveyed; nothing is written then.
        Refused: the folder, the host or the recipe is unsuitable; nothing is written then.
    """
    starter.refuse_project(folder)
    files.refuse_name(host.name)
    if named:
        recipe.load(shipped_files.source(), named)
    found = _chosen(host, named=named, asking=False, offline=offline)
    return _write(folder, found)


def _chosen(host: NewHost, *, named: str, asking: bool, offline: bool) -> FoundHostFound:
    recipes = [recipe.load(shipped_files.source(), name) for name in recipe.names(shipped_files.source())]
    reserve = defaults.RESERVE_GIB
    return chosen(host, recipes, reserve_gib=reserve, named=named, asking=asking, offline=offline)


def _is_real(found: FoundHostFound) -> bool:
    return found.host.address != SANDBOX


def _texts(found: FoundHostFound) -> tuple[dict[str, str], set[str]]:
    """Return the texts that differ from the starter's files, by path, and the paths of the files to omit."""
    top, host, choice = shipped_files.source(), found.host, found.choice
    if not _is_real(found):
        sandbox = f"hosts/{SANDBOX}.yml"
        text = files.with_recipe((top / sandbox).read_text(), host.recipe)
        return {sandbox: files.with_port(text, _free_port())}, {EXAMPLE}
    groups = (top / "hosts/groups.yml").read_text()
    texts = {
        f"hosts/{host.name}.yml": files.host_text(host, found.lines, "init"),
        "hosts/groups.yml": files.with_groups(groups, {files.GROUP: {}}, host.groups),
    }
    if choice is not None and choice.moved:
        name = f"recipes/{choice.name}.yml"
        texts[name] = files.with_dir((top / name).read_text(), choice.moved, host.name)
    return texts, {EXAMPLE} - set(texts)


def _free_port() -> int:
    """Return the sandbox's usual port, or one near it if another project's sandbox uses it."""
    for port in range(SANDBOX_PORT, SANDBOX_PORT + 500, 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return SANDBOX_PORT


def _write(folder: Path, found: FoundHostFound) -> Exit:
    texts, without = _texts(found)
    written = starter.lay(folder, texts, without)
    say(f"{len(written)} files: hosts/, recipes/, tasks.py")
    for name in texts:
        say(f"  {name}")
    show_notes(found)
    show_next(found, folder)
    return Exit.OK


def show_notes(found: FoundHostFound) -> None:
    """Print how files that are already on the host will be used."""
    choice, seen = found.choice, found.survey
    if choice is not None and choice.moved:
        say(f"The model is taken from {choice.moved}: a deploy proves its files and downloads only what is missing.")
    if choice is not None and choice.found and choice.found["place"] == "hub cache":
        own, cached = choice.recipe.file.model.dir, str(choice.found["dir"])
        say("The model is in the hub's cache there. To have it without a download or more disk, run on the host:")
        own = own if own.startswith("/") else f"$HOME/{own.removeprefix('~/')}"
        say(f'  mkdir -p "{own}" && cp -rlLT {join([cached])} "{own}"')
    running = survey.servers(seen) if seen else []
    for line in running:
        say(
            f"{line[0].upper()}{line[1:]}. A deploy leaves it alone unless the recipe has its name; it holds memory and its port."
        )
    for server in seen["servers"] if seen else ():
        if not server["verified"]:
            words = ["recipe.import", "--from-host", found.host.name, "--container", str(server["name"])]
            say(f"To take {server['name']} over without a restart: `invoke {join(words)}`.")


def show_next(found: FoundHostFound, folder: Path) -> None:
    """Print the three next commands."""
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
        say(f"  {typed:<40} # {why[command]}")


def named_host(address: str, *, name: str = "", user: str = "", groups: tuple[str, ...] = ()) -> NewHost:
    """Return the host that the flags describe. Raises Refused for invalid flags."""
    host = NewHost.typed(address)
    host = replace(host, name=name or host.name, user=user or host.user, groups=groups or host.groups)
    for group in host.groups:
        files.refuse_name(group, "group")
    files.refuse_name(host.name)
    return host


SANDBOX = "sandbox"
#: survey of the sandbox before it is started
SIMULATED: dict[str, Any] = {"memory_bytes": memory.TOTAL, "models": [], "servers": []}
CANDIDATES = grid.columns(("", 0), ("HOST", 0), ("FOUND IN", 0))
CHOICES = grid.columns(("", 0), ("RECIPE", 0), ("ON DISK", 1), ("FITS", 0), ("MEMORY", 0))
#: verdicts in the table
FITS = {"fits": "yes", "unknown": "unknown", "too large": "no"}
#: most recipes that are listed; others can be typed
MOST = 9


@dataclass(frozen=True, slots=True)
class FoundHostFound:
    """A host that was selected for the project."""

    host: NewHost
    #: None if the host was not asked
    survey: dict[str, Any] | None
    #: its recipe; None for no recipe
    choice: Choice | None

    @property
    def lines(self) -> list[str]:
        """The results of the survey, one sentence each."""
        return [] if self.survey is None else survey.lines(self.survey)


def ask_which(*, sandbox: bool) -> NewHost:
    """Find hosts, list them, and ask for one.

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
        answer = (
            questions.choose(question, [candidate.address for candidate in rows]) if rows else questions.ask(question)
        )
        if answer:
            try:
                return NewHost.typed(answer)
            except Refused as error:
                say(error)


def see(host: NewHost, recipes: Sequence[Recipe], *, asking: bool) -> dict[str, Any] | None:
    """Log in and survey the host. Raises Unreachable if it can't be surveyed.

    Returns None if the user chose to continue without a survey.
    """
    as_host = Host(name=host.name, address=host.address, user=host.user, port=host.port)
    if not asking:
        return survey.of(as_host, recipes, lambda error: False)
    say(f"Logging in to {host.address}. The first time this copies sparkwright's runtime there (about 11 MB, no root).")
    try:
        return survey.of(as_host, recipes, _accepted)
    except Unreachable as error:
        say(error)
        if survey.refused(error):
            to = f"{host.user}@{host.address}" if host.user else host.address
            say(f"To copy your key there: {join(['ssh-copy-id', *(['-p', host.port] if host.port else []), to])}")
        if isinstance(error, UnknownKey) or not questions.agree(
            "Write its file without having seen it?", default=False
        ):
            raise Unreachable("nothing was written.", where=host.address) from None
    return None


def choose(
    recipes: Sequence[Recipe], seen: dict[str, Any] | None, reserve_gib: float, *, named: str, asking: bool
) -> Choice | None:
    """Return the recipe for a host. Raises Refused for a named recipe that does not fit its memory.

    Args:
        named: recipe that the user named; nothing is asked then.
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
        say(f"Too large for this host: {', '.join(choice.name for choice in rows if choice not in fitting)}.")
    name = questions.choose_one_of("Which recipe?", [choice.name for choice in shown])
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
) -> FoundHostFound:
    """Survey a host, show the results, and select its recipe.

    Args:
        quiet: print errors only, for a program.
    """
    simulated = host.address == SANDBOX
    seen = None if offline or simulated else see(host, recipes, asking=asking)
    if seen is not None and not quiet:
        for line in survey.lines(seen):
            say(f"  {line}")
    choice = choose(recipes, SIMULATED if simulated else seen, reserve_gib, named=named, asking=asking)
    if choice is not None and choice.fit.budget is not None and not quiet:
        say(f"The memory of {choice.name}:")
        for line in choice.fit.budget.lines():
            say(f"  {line}")
    return FoundHostFound(replace(host, recipe=choice.name if choice else ""), seen, choice)


def _accepted(error: UnknownKey) -> bool:
    """Ask whether to accept a host key, in the words of ssh."""
    key, target = error.key, error.target
    say(f"The authenticity of host '{target.known_as}' can't be established.")
    say(f"{key.get_name()} key fingerprint is {host_keys.fingerprint(key)}. Compare it with the host's own:")
    say("  for f in /etc/ssh/ssh_host_*.pub; do ssh-keygen -lf $f; done")
    return questions.typed_yes("Is it the same, and shall it be kept in known_hosts?")
