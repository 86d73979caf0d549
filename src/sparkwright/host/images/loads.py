"""Undoing the side effects of a `docker load`.

An archive names its images itself: it can bring any tag, and move one that is in use on the host. So all names are listed before
a load and compared after it. The engine's events reveal what someone else pulled, tagged or built meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.host.images import image_names

#: events that name an image by a user's or a program's action; a load is none of these
OWN_DOING = ("pull", "tag", "import", "build")


@dataclass(frozen=True, slots=True)
class Names:
    """The images of an engine at one moment."""

    #: REPOSITORY:TAG -> Id
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Ids without a tag or a digest
    nameless: Sequence[str] = ()
    #: seconds since the epoch on the engine's host, with fractions, as its events API reads them
    at: str = "0"


def names(api: Any) -> Names:
    """Return all image names in an engine now."""
    tags: dict[str, str] = {}
    nameless = []
    for image in api.images():
        own = [tag for tag in image.get("RepoTags") or () if "<none>" not in tag]
        tags |= dict.fromkeys(own, image["Id"])
        if not own and not [digest for digest in image.get("RepoDigests") or () if "<none>" not in digest]:
            nameless.append(image["Id"])
    return Names(tags, tuple(nameless), f"{time.time():.6f}")


def undo(api: Any, before: Names, *keep: str) -> list[str]:
    """Remove new images and restore moved tags, except `keep`. Returns a sentence for each action."""
    now = names(api)
    done_by_others = _named_by_others(api, before.at)
    done = []
    for tag, image_id in sorted(now.tags.items()):
        was = before.tags.get(tag)
        if was == image_id or tag in keep or tag in done_by_others:
            continue
        if was:
            repository, _, short = tag.rpartition(":")
            api.tag(was, repository, short, force=True)
            done.append(f"{tag} pointed to {image_id[7:19]} after the load; restored to {was[7:19]}")
        else:
            done.append(_removed(api, tag, image_id, f"{tag} was not requested"))
    loaded = {event["Actor"]["ID"] for event in _events(api, before.at, ("load",))}
    came = [item for item in names(api).nameless if item not in before.nameless]
    mine = [item for item in came if item in loaded or item in now.tags.values()]
    return [*done, *(_removed(api, item, item, f"image {item[7:19]} was not requested") for item in mine)]


def _removed(api: Any, name: str, image_id: str, why: str) -> str:
    from docker.errors import APIError

    try:
        if not image_names.remove_name(api, name, image_id):
            return f"{why}; it names another image by now, and stays"
    except APIError as error:
        return f"{why}; Docker did not remove it: {error.explanation or error}"
    return f"{why}; removed it"


def _named_by_others(api: Any, since: str) -> set[str]:
    found = set()
    for event in _events(api, since, OWN_DOING):
        about = event["Actor"]
        found |= {about["ID"], (about.get("Attributes") or {}).get("name", "")}
    return found


def _events(api: Any, since: str, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the engine's image events from a moment until now."""
    wanted = {"type": ["image"], "event": list(kinds)}
    raw = api.events(since=since, until=f"{time.time():.6f}", filters=wanted)
    for line in b"".join(raw).splitlines():
        yield json.loads(line)
