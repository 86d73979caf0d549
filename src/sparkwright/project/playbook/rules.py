"""Checks of a playbook: the shape of its tasks, and no secret as a plain value among variables or arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

from sparkwright.modules import registry
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check
from sparkwright.project.inventory import rules
from sparkwright.project.playbook.includes import LISTS
from sparkwright.project.playbook.models import BlockFile, TaskFile
from sparkwright.trust.secret_names import is_secret, plain_secrets

IN_A_FILE = "Put it into a file on the host with mode 0600, and name that file."


def refuse(read: Document) -> None:
    """Raise Refused with file and line for the first secret in a play."""
    for at, place in _secrets(read.data, ()):
        raise rules.refusal(place, read, at, fix="" if place[0] == "vars" else IN_A_FILE)


def refuse_steps(read: Document, items: list[Any], place: Place) -> None:
    """Raise Refused with file and line for the first task of a list with an invalid value of a key."""
    for n, item in enumerate(items):
        here = (*place, n)
        check(BlockFile if isinstance(item, dict) and "block" in item else TaskFile, read, item, at=here)
        for part in LISTS:
            if isinstance(item.get(part), list):
                refuse_steps(read, item[part], (*here, part))


def _secrets(items: Any, at: Place) -> Iterator[tuple[Place, Place]]:
    """Yield the place of each secret: its play or task, and the place within that."""
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        here = (*at, n)
        yield from ((here, place) for place in plain_secrets(item.get("vars"), ("vars",)))
        for module in item.keys() & registry.NAMES:
            yield from ((here, place) for place in plain_secrets(item[module], (module,)) if _counts(place, item))
        for name in LISTS:
            yield from _secrets(item.get(name), (*here, name))


def _counts(place: Place, item: Any) -> bool:
    """Return True if a module's argument counts as a secret: by its looks, or as a variable.

    The argument's own name does not count: as `key`, it tells what the module does with it.
    """
    return "env" in place or is_secret("", reduce(getitem, place, item))
