"""Removing files that a container wrote as root, or making them readable, as a user who is not root.

Only root may change root's files, and sparkwright does not ask for root on the host. A temporary container does it: from an empty
image, with the host's own program and libraries mounted read-only, one folder to work on, no network, and two capabilities. No
program of a served image runs, and nothing else of the host is reachable (docs/decisions/0035).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkwright import shell
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import container_labels, lifecycle
from sparkwright.host.module import Context
from sparkwright.host.records.own_folders import SHARE
from sparkwright.trust import private

WAIT_S = 120
#: below the user's home: files and folders to remove. No container mounts anything below it
TRASH = f"{SHARE}/trash"
#: the folder's path in the temporary container
SEEN_AT = "/work"
#: mounts needed to run a program of the host
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64")


def discard(context: Context, path: Path) -> None:
    """Move a file or folder into the trash, out of reach of every container. Removes nothing yet.

    Raises:
        OSError: It cannot be moved, or is not there.
    """
    trash = private.folder(context.machine.home / TRASH) / os.urandom(8).hex()
    private.folder(trash)
    path.rename(trash / path.name)


def empty_trash(context: Context) -> None:
    """Remove everything in the trash, whoever owns it.

    Raises:
        Failed: Some of it cannot be removed, with the command for root.
    """
    trash = context.machine.home / TRASH
    if trash.is_symlink() or not trash.is_dir():
        return
    for path in sorted(trash.iterdir()):
        with contextlib.suppress(Failed):  # rm may print an error for each of a million files
            context.machine.run(("rm", "-rf", "--", str(path)), timeout_s=WAIT_S)  # any depth, and no link is followed
        if path.exists():
            as_root(context, path, ("rm", "-rf", "--"), f"{SEEN_AT}/{path.name}", above=True)
        if path.exists():
            fix = f"On the host: `{shell.join(('sudo', 'rm', '-rf', path))}`."
            raise Failed(f"{path} holds files of root.", fix=fix)


def try_to_empty_trash(context: Context) -> None:
    """Remove everything in the trash; a note reports what cannot be removed."""
    try:
        empty_trash(context)
    except (OSError, SparkwrightError) as error:
        context.note(f"the trash is not emptied: {error}")


def open_for_reading(context: Context, folder: Path) -> None:
    """Make a folder that a container filled readable for everyone. Its parents still restrict access."""
    as_root(context, folder, ("chmod", "-R", "a+rX", "--"), SEEN_AT)


def as_root(context: Context, path: Path, program: Sequence[str], argument: str, *, above: bool = False) -> None:
    """Run a program of the host on one folder, as root in a temporary container. A failure is noted, not raised.

    Args:
        context: Of the run.
        path: The folder.
        program: The program's name and its options.
        argument: The program's last argument.
        above: Whether the program needs the parent of `path`, as `rm` does. The parent must hold nothing else.
    """
    from docker.errors import APIError

    found = shutil.which(program[0], path="/usr/bin:/bin")
    if found is None:
        context.note(f"the host has no program {program[0]} in /usr/bin or /bin.")
        return
    api: Any = context.docker().api
    image = made = ""
    try:
        image = _empty_image(api)
        body = _body(image, [found, *program[1:]], argument, path.parent if above else path)
        made = lifecycle.create(context, body, container_labels.HELPER)
        lifecycle.start(context, made)
        api.wait(made, timeout=WAIT_S)
    except (APIError, OSError) as error:
        context.note(f"no container could run {program[0]} on {path}: {getattr(error, 'explanation', '') or error}")
    finally:
        if made:
            lifecycle.discard(context, made)
        if image:
            api.remove_image(image, force=True)


def _body(image: str, entrypoint: list[str], argument: str, folder: Path) -> dict[str, Any]:
    """Return the request to create the temporary container."""
    mounts: list[dict[str, Any]] = [{"Type": "bind", "Source": str(folder), "Target": SEEN_AT}]
    mounts += [
        {"Type": "bind", "Source": program, "Target": program, "ReadOnly": True}
        for program in _PROGRAMS
        if Path(program).is_dir()
    ]
    rights = {
        "NetworkMode": "none",
        "UsernsMode": "host",  # its root must be the host's, also if containers have a user namespace
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges", "label=disable"],
    }
    host = {"Mounts": mounts, **rights}
    return {"Image": image, "Entrypoint": entrypoint, "Cmd": [argument], "User": "0:0", "Env": [], "HostConfig": host}


def _empty_image(api: Any) -> str:
    """Return the Id of an image without files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w"):
        pass
    name = f"sparkwright-empty-{os.urandom(6).hex()}"
    api.import_image_from_data(raw.getvalue(), repository=name, tag="latest")
    return str(api.inspect_image(f"{name}:latest")["Id"])
