"""`--list-tasks`: the playbook read aloud, without a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.project.playbook.playbook import Options, Play, Playbook
from sparkwright.project.playbook.selection import wanted


def list_tasks(book: Playbook, options: Options) -> Iterator[str]:
    """A line a play, a line a task, blocks indented, with tags."""
    for play in book.plays:
        yield f"{play.name} ({play.hosts})"
        yield from _lines(play.file.tasks, 1, _tags(play.file.model_dump()), options, play)
        if play.file.handlers:
            yield "  handlers:"
            yield from _lines(play.file.handlers, 2, (), options, play)


def _lines(
    items: list[dict[str, Any]], depth: int, above: tuple[str, ...], options: Options, play: Play
) -> Iterator[str]:
    indent = "  " * depth
    for item in items:
        tags = above + _tags(item)
        if "block" in item:
            yield f"{indent}{item.get('name', 'block')}:"
            for part in ("block", "rescue", "always"):
                if item.get(part):
                    yield from [f"{indent}  {part}:"] if part != "block" else []
                    yield from _lines(item[part], depth + 1 + (part != "block"), tags, options, play)
        elif wanted(tags, options):
            yield f"{indent}{item.get('name') or next(iter(item))}" + (f"  [{', '.join(tags)}]" if tags else "")


def _tags(item: dict[str, Any]) -> tuple[str, ...]:
    given = item.get("tags") or []
    return tuple(given.split(",") if isinstance(given, str) else given)
