"""Differences between two entries of the lock, as rows for a person to judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.console import words
from sparkwright.engines.model import chat_template

Entry = Mapping[str, Any]
SHOWN_FILES = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A difference between two entries."""

    what: str
    #: as text; None if absent or unknown
    before: str | None
    #: as text; None if absent or unknown
    after: str | None

    def __str__(self) -> str:
        return f"{self.what:<10} {self.before or 'unknown'} -> {self.after or 'unknown'}"


def image(old: Entry, new: Entry, engine: str) -> list[Row]:
    """Return the differences between two entries of an image; none if the digest is the same, as it decides the rest.

    Args:
        engine: title of the engine.
    """
    if old["digest"] == new["digest"]:
        return []
    rows = [Row("digest", words.short(old["digest"]), words.short(new["digest"]))]
    rows += _row(engine, old.get("engine_version"), new.get("engine_version"))
    rows += _row("created", _day(old.get("created")), _day(new.get("created")))
    rows += _row("size", _size(old.get("size_bytes")), _size(new.get("size_bytes")))
    return rows + _row("platforms", ", ".join(old["platforms"]), ", ".join(new["platforms"]))


def model(old: Entry, new: Entry) -> list[Row]:
    """Return the differences between two entries of a model: the commit, and the files added, removed and changed."""
    rows = _row("commit", old["commit"][:12], new["commit"][:12])
    rows += _chat(old, new)
    before, after = ({file["path"]: file for file in entry["files"]} for entry in (old, new))
    added = [after[path] for path in after if path not in before]
    removed = [before[path] for path in before if path not in after]
    changed = [(before[path], after[path]) for path in after if path in before and _differ(before[path], after[path])]
    rows += [Row(f"+ {item['path']}", "absent", _size(item["size_bytes"])) for item in added]
    rows += [Row(f"- {item['path']}", _size(item["size_bytes"]), "absent") for item in removed]
    rows += [Row(f"~ {b['path']}", _content(b), _content(a)) for b, a in changed]
    anew = sum(item["size_bytes"] for item in [*added, *(after_one for _, after_one in changed)])
    return [*rows, Row("to load", "0 B", units.size(anew))] if added or changed else rows


def shown(rows: list[Row]) -> Iterator[str]:
    """Format rows as lines. Of very many files only the first are shown."""
    yield from (str(row) for row in rows[: SHOWN_FILES + 6])
    if len(rows) > SHOWN_FILES + 6:
        yield f"... and {len(rows) - SHOWN_FILES - 6} more"


def _row(what: str, before: str | None, after: str | None) -> list[Row]:
    return [] if before == after else [Row(what, before, after)]


def _chat(old: Entry, new: Entry) -> list[Row]:
    """Return the changes of the chat template and the sampling defaults; none if the old ones were never read."""
    if old.get("chat") is None or new.get("chat") is None:
        return []
    return [Row(*change) for change in chat_template.changes(old["chat"], new["chat"])]


def _differ(before: Entry, after: Entry) -> bool:
    return any(before.get(key) != after.get(key) for key in ("sha256", "blob_id", "size_bytes"))


def _content(entry: Entry) -> str:
    return f"{_size(entry['size_bytes'])} {(entry.get('sha256') or entry.get('blob_id') or '')[:8]}"


def _day(created: str | None) -> str | None:
    return created[:10] if created else None


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else units.size(size_bytes)
