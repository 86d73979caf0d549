"""The `init` command with a host: a new project with a suitable recipe, and the next commands."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from pathlib import Path

from sparkwright import defaults
from sparkwright.app.setup import files, found_host, questions, survey
from sparkwright.app.setup.files import NewHost
from sparkwright.app.setup.found_host import SANDBOX, Found
from sparkwright.console.out import say
from sparkwright.errors import Exit
from sparkwright.project import recipe, starter
from sparkwright.shell import join

#: the starter's example, which is not a host of the user
EXAMPLE = "hosts/spark1.yml"
#: port in hosts/sandbox.yml
SANDBOX_PORT = 18471


def asked(folder: Path) -> Exit:
    """Ask for the host, the recipe, and the confirmation, and write the files. Nothing is written after Ctrl-C or a no."""
    starter.refuse_project(folder)
    host = found_host.ask_which(sandbox=True)
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
        recipe.load(starter.source(), named)
    found = _chosen(host, named=named, asking=False, offline=offline)
    return _write(folder, found)


def _chosen(host: NewHost, *, named: str, asking: bool, offline: bool) -> Found:
    recipes = [recipe.load(starter.source(), name) for name in recipe.names(starter.source())]
    reserve = defaults.RESERVE_GIB
    return found_host.chosen(host, recipes, reserve_gib=reserve, named=named, asking=asking, offline=offline)


def _is_real(found: Found) -> bool:
    return found.host.address != SANDBOX


def _texts(found: Found) -> tuple[dict[str, str], set[str]]:
    """Return the texts that differ from the starter's files, by path, and the paths of the files to omit."""
    top, host, choice = starter.source(), found.host, found.choice
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


def _write(folder: Path, found: Found) -> Exit:
    texts, without = _texts(found)
    written = starter.lay(folder, texts, without)
    say(f"{len(written)} files: hosts/, recipes/, tasks.py")
    for name in texts:
        say(f"  {name}")
    show_notes(found)
    show_next(found, folder)
    return Exit.OK


def show_notes(found: Found) -> None:
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


def show_next(found: Found, folder: Path) -> None:
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
