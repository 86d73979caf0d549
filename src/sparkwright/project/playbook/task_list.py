"""`--list-tasks`: the tasks of a playbook, without a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.modules import registry
from sparkwright.project.playbook.playbook import Options, Play, Playbook
from sparkwright.project.playbook.selection import wanted, words

#: the lists of a block, with their keys in JSON
PARTS = {"block": "tasks", "rescue": "rescue", "always": "always"}


def list_tasks(book: Playbook, options: Options) -> list[dict[str, Any]]:
    """Return the plays with their selected tasks as JSON: a task has its name, module and tags, a block its lists."""
    return [_play(play, options) for play in book.plays]


def lines(plays: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the same as text: a line for each play and task, blocks indented, with tags."""
    for play in plays:
        yield f"{play['name']} ({play['hosts']})"
        yield from _lines(play["tasks"], 1)
        if play["handlers"]:
            yield "  handlers:"
            yield from _lines(play["handlers"], 2)


def _play(play: Play, options: Options) -> dict[str, Any]:
    tags = words(play.file.tags)
    lists = {"tasks": _steps(play.file.tasks, tags, options), "handlers": _steps(play.file.handlers, (), options)}
    return {
        "name": play.name,
        "hosts": play.hosts,
        "tags": list(tags),
        **{name: [*value] for name, value in lists.items()},
    }


def _steps(items: list[dict[str, Any]], above: tuple[str, ...], options: Options) -> Iterator[dict[str, Any]]:
    for item in items:
        tags = above + words(item.get("tags") or [])
        if "block" in item:
            inside = {PARTS[part]: list(_steps(item[part], tags, options)) for part in PARTS if item.get(part)}
            yield {"block": item.get("name") or "block", "tags": list(tags), **inside}
        elif wanted(tags, options):
            module = next((key for key in item if key in registry.NAMES), next(iter(item)))
            yield {"name": item.get("name") or module, "module": module, "tags": list(tags)}


def _lines(steps: list[dict[str, Any]], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for step in steps:
        if "block" not in step:
            yield f"{indent}{step['name']}" + (f"  [{', '.join(step['tags'])}]" if step["tags"] else "")
            continue
        yield f"{indent}{step['block']}:"
        yield from _lines(step.get("tasks", []), depth + 1)
        for part in ("rescue", "always"):
            if part in step:
                yield f"{indent}  {part}:"
                yield from _lines(step[part], depth + 2)
