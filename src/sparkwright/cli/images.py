"""The commands about the images on hosts: `images.prune` and `images.copy`."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit, Refused


@command(
    help={
        "all": "images of every repository, not only of those that the recipes name",
        "check": "only show; exit code 2 when something would be removed",
        "yes": "do not ask",
        "json": "one JSON object a host: its images, and what was freed (null: nothing was removed)",
    }
)
def prune(host: str = "", all: bool = False, check: bool = False, yes: bool = False, json: bool = False) -> list[Exit]:
    """Remove a host's unused images, after asking.

    Shows which images nothing needs and what removing them frees. What spark.lock pins for any host is kept.
    """
    from sparkwright.app.connect import machines, reach

    selection = machines(reach(host))
    from sparkwright.app.stores import images

    return images.prune(selection, everything=all, check=check, yes=yes, json=json)


@command(
    help={
        "from": "the host that has the image",
        "to": "the hosts to copy it to: spark2, a group, all",
        "image": "repository:tag (default: the image of the receiving host's recipe)",
        "json": "events as JSON lines",
    }
)
def copy(from_: str = "", to: str = "", image: str = "", json: bool = False) -> list[Exit]:
    """Copy an image from one host to others.

    One compressed stream over ssh, compared at the end. No registry is asked.
    """
    from sparkwright.app.stores import images

    if not from_ or not to:
        raise Refused("say --from HOST and --to HOSTS.")
    return images.copy(from_, to, image, json=json)


TASKS = {"images": [prune, copy]}
