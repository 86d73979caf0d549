"""Select tasks by --tags, --skip-tags and --start-at-task, as Ansible does, and list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.playbook.playbook import Options, Play, Playbook
from sparkwright.protocol.plan import Block, Step, Task, tasks_of

SPECIAL_TAGS = ("all", "tagged", "untagged", "always", "never")


def select_steps(steps: tuple[Step, ...], options: Options) -> tuple[Step, ...]:
    """Return the steps to run. Raises Refused for an unknown tag or task name."""
    tasks = tasks_of(steps)
    known = {tag for task in tasks for tag in task.tags}
    for tag in (*options.tags, *options.skip_tags):
        if tag not in known and tag not in SPECIAL_TAGS:
            raise Refused(f"no task has the tag {tag!r}.", fix=suggest_name(tag, known, label="Tags"))
    selected = _filter_steps(steps, lambda task: is_selected(task.tags, options))
    return (
        _steps_from(selected, options.start_at_task, [task.name for task in tasks])
        if options.start_at_task
        else selected
    )


def is_selected(tags: tuple[str, ...], options: Options) -> bool:
    """Return True if a task with these tags runs, by Ansible's rules."""
    wanted_tags, skipped = options.tags or ("all",), options.skip_tags
    own = set(tags)
    runs = (
        bool(own & set(wanted_tags))
        or ("all" in wanted_tags and "never" not in own)
        or ("tagged" in wanted_tags and bool(own) and "never" not in own)
        or ("untagged" in wanted_tags and not own)
        or ("always" in own and "always" not in skipped)
    )
    bare = "tagged" if own else "untagged"
    return runs and not own & set(skipped) and bare not in skipped and not ("all" in skipped and "always" not in own)


def split_names(names: list[str] | str) -> tuple[str, ...]:
    """Return tags, or names of handlers, given as a list or as `a, b`."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(word for word in map(str.strip, parts) if word)


def _filter_steps(steps: tuple[Step, ...], keep: Callable[[Task], bool]) -> tuple[Step, ...]:
    selected: list[Step] = []
    for step in steps:
        if isinstance(step, Task):
            selected += [step] if keep(step) else []
            continue
        inside = _filter_steps(step.tasks, keep)
        if inside:
            rescue, always = _filter_steps(step.rescue, keep), _filter_steps(step.always, keep)
            selected.append(replace(step, tasks=inside, rescue=rescue, always=always))
    return tuple(selected)


def _steps_from(steps: tuple[Step, ...], name: str, names: list[str]) -> tuple[Step, ...]:
    """Return the steps from the task of this name on; a block that holds the task starts there."""
    if name not in names:
        raise Refused(f"no task named {name!r}.", fix=suggest_name(name, names, label="Tasks"))
    for n, step in enumerate(steps):
        if isinstance(step, Task) and step.name == name:
            return steps[n:]
        if isinstance(step, Block) and name in [task.name for task in tasks_of(step.tasks)]:
            return (replace(step, tasks=_steps_from(step.tasks, name, names)), *steps[n + 1 :])
    return ()


#: the lists of a block, with their keys in JSON
BLOCK_LISTS = {"block": "tasks", "rescue": "rescue", "always": "always"}


def list_tasks(book: Playbook, options: Options) -> list[dict[str, Any]]:
    """Return the plays with their selected tasks as JSON: a task has its name, module and tags, a block its lists."""
    return [_list_play(play, options) for play in book.plays]


def format_tasks(plays: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the same as text: a line for each play and task, blocks indented, with tags."""
    for play in plays:
        yield f"{play['name']} ({play['hosts']})"
        yield from _format_steps(play["tasks"], 1)
        if play["handlers"]:
            yield "  handlers:"
            yield from _format_steps(play["handlers"], 2)


def _list_play(play: Play, options: Options) -> dict[str, Any]:
    tags = split_names(play.file.tags)
    lists = {
        "tasks": _list_steps(play.file.tasks, tags, options),
        "handlers": _list_steps(play.file.handlers, (), options),
    }
    return {
        "name": play.name,
        "hosts": play.hosts,
        "tags": list(tags),
        **{name: [*value] for name, value in lists.items()},
    }


def _list_steps(items: list[dict[str, Any]], above: tuple[str, ...], options: Options) -> Iterator[dict[str, Any]]:
    for item in items:
        tags = above + split_names(item.get("tags") or [])
        if "block" in item:
            inside = {
                BLOCK_LISTS[part]: list(_list_steps(item[part], tags, options))
                for part in BLOCK_LISTS
                if item.get(part)
            }
            yield {"block": item.get("name") or "block", "tags": list(tags), **inside}
        elif is_selected(tags, options):
            module = next((key for key in item if key in registry.NAMES), next(iter(item)))
            yield {"name": item.get("name") or module, "module": module, "tags": list(tags)}


def _format_steps(steps: list[dict[str, Any]], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for step in steps:
        if "block" not in step:
            yield f"{indent}{step['name']}" + (f"  [{', '.join(step['tags'])}]" if step["tags"] else "")
            continue
        yield f"{indent}{step['block']}:"
        yield from _format_steps(step.get("tasks", []), depth + 1)
        for part in ("rescue", "always"):
            if part in step:
                yield f"{indent}  {part}:"
                yield from _format_steps(step[part], depth + 2)
