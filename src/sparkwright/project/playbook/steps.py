"""The shape of every task and block, checked when a playbook is read, before anything else looks into them."""

from __future__ import annotations

from typing import Any

from sparkwright.project.documents.checked import check
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.playbook.includes import LISTS
from sparkwright.project.playbook.models import BlockFile, TaskFile


def refuse(read: Document, items: list[Any], place: Place) -> None:
    """Raises Refused with file and line for the first task, of a list at a place, whose keys hold what they can't."""
    for n, item in enumerate(items):
        here = (*place, n)
        check(BlockFile if isinstance(item, dict) and "block" in item else TaskFile, read, item, at=here)
        for part in LISTS:
            if isinstance(item.get(part), list):
                refuse(read, item[part], (*here, part))
