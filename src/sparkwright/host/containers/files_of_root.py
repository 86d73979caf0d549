"""Folders that a container filled are removed, whoever it ran as.

What it wrote as root only root removes. The host is asked for no such right: a container of the same image does it, without a
network, with this one folder, and with the one capability that it takes (docs/decisions/0022).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sparkwright import shell
from sparkwright.errors import Failed
from sparkwright.host.containers import docker_client, lifecycle, ownership
from sparkwright.host.module import Context

WAIT_S = 120
#: where the container that removes sees the folder above
SEEN_AT = "/caches"


def remove_folder(context: Context, at: Path, name: str, image_id: str) -> None:
    """Remove a folder of a key, whoever made what is in it. Raises Failed with what root would have to type."""
    shutil.rmtree(at / name, ignore_errors=True)
    if not (at / name).exists():
        return
    image = _image(context, image_id)
    if image:
        _by_container(context, at, name, image)
    if (at / name).exists():
        fix = f"On the host: `{shell.join(('sudo', 'rm', '-rf', at / name))}`."
        raise Failed(f"{at / name} holds files of root.", fix=fix)


def _image(context: Context, image_id: str) -> str:
    """The image that the cache was made with, else that of any container; empty for none."""
    api: Any = context.docker().api
    try:
        return str(api.inspect_image(image_id)["Id"]) if image_id else ""
    except docker_client.errors().ImageNotFound:
        return next((str(row["ImageID"]) for row in api.containers(all=True)), "")


def _by_container(context: Context, at: Path, name: str, image: str) -> None:
    from docker.errors import APIError

    api: Any = context.docker().api
    mount = {"Type": "bind", "Source": str(at), "Target": SEEN_AT}
    rights = {"NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"], "CapAdd": ["DAC_OVERRIDE"]}
    command = {"Entrypoint": ["rm"], "Cmd": ["-rf", f"{SEEN_AT}/{name}"], "User": "0:0"}
    made = ""
    try:
        config = {"Image": image, **command, "HostConfig": {"Mounts": [mount], **rights}}
        made = lifecycle.create(context, config, ownership.HELPER)
        lifecycle.start(context, made)
        api.wait(made, timeout=WAIT_S)
    except (APIError, OSError) as error:
        context.note(f"no container could remove {at / name}: {getattr(error, 'explanation', '') or error}")
    finally:
        if made:
            lifecycle.discard(context, made)
