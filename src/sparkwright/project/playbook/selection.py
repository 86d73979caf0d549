"""Selects tasks by --tags, --skip-tags and --start-at-task, as in Ansible, and lists them."""

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
#: JSON keys of a block's lists, by their key in playbooks
BLOCK_LISTS = {"block": "tasks", "rescue": "rescue", "always": "always"}


def select_steps(steps: tuple[Step, ...], options: Options) -> tuple[Step, ...]:
    """Return the steps to run. Raises Refused for an unknown tag or task name."""
    tasks = tasks_of(steps)
    task_tags = {tag for task in tasks for tag in task.tags}
    for tag in (*options.tags, *options.skip_tags):
        if tag not in task_tags and tag not in SPECIAL_TAGS:
            raise Refused(f"no task has the tag {tag!r}.", fix=suggest_name(tag, task_tags, label="Tags"))
    selected_steps = _filter_steps(steps, lambda task: is_selected(task.tags, options))
    if not options.start_at_task:
        return selected_steps
    return _steps_from(selected_steps, options.start_at_task, [task.name for task in tasks])


def is_selected(task_tags: tuple[str, ...], options: Options) -> bool:
    """Return True if a task with these tags runs, by Ansible's rules."""
    selected_tags, skipped_tags = options.tags or ("all",), options.skip_tags
    tags = set(task_tags)
    runs = (
        bool(tags & set(selected_tags))
        or ("all" in selected_tags and "never" not in tags)
        or ("tagged" in selected_tags and bool(tags) and "never" not in tags)
        or ("untagged" in selected_tags and not tags)
        or ("always" in tags and "always" not in skipped_tags)
    )
    special_tag = "tagged" if tags else "untagged"
    return (
        runs
        and not tags & set(skipped_tags)
        and special_tag not in skipped_tags
        and not ("all" in skipped_tags and "always" not in tags)
    )


def split_names(names: list[str] | str) -> tuple[str, ...]:
    """Return the names in a list or in a string like `a, b`."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(name for name in map(str.strip, parts) if name)


def _filter_steps(steps: tuple[Step, ...], should_keep: Callable[[Task], bool]) -> tuple[Step, ...]:
    selected_steps: list[Step] = []
    for step in steps:
        if isinstance(step, Task):
            selected_steps += [step] if should_keep(step) else []
            continue
        tasks = _filter_steps(step.tasks, should_keep)
        if tasks:
            rescue, always = _filter_steps(step.rescue, should_keep), _filter_steps(step.always, should_keep)
            selected_steps.append(replace(step, tasks=tasks, rescue=rescue, always=always))
    return tuple(selected_steps)


def _steps_from(steps: tuple[Step, ...], name: str, names: list[str]) -> tuple[Step, ...]:
    """Return the steps beginning with the named task; if it is in a block, the block begins with it."""
    if name not in names:
        raise Refused(f"no task named {name!r}.", fix=suggest_name(name, names, label="Tasks"))
    for n, step in enumerate(steps):
        if isinstance(step, Task) and step.name == name:
            return steps[n:]
        if isinstance(step, Block) and name in [task.name for task in tasks_of(step.tasks)]:
            return (replace(step, tasks=_steps_from(step.tasks, name, names)), *steps[n + 1 :])
    return ()


def list_tasks(playbook: Playbook, options: Options) -> list[dict[str, Any]]:
    """Return the plays with their selected tasks as JSON: tasks with name, module and tags, blocks with their lists."""
    return [_list_play(play, options) for play in playbook.plays]


def format_tasks(plays: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the result of `list_tasks` as lines of text: plays and tasks with their tags, contents of blocks indented."""
    for play in plays:
        yield f"{play['name']} ({play['hosts']})"
        yield from _format_steps(play["tasks"], 1)
        if play["handlers"]:
            yield "  handlers:"
            yield from _format_steps(play["handlers"], 2)


def _list_play(play: Play, options: Options) -> dict[str, Any]:
    tags = split_names(play.file.tags)
    return {
        "name": play.name,
        "hosts": play.hosts,
        "tags": list(tags),
        "tasks": list(_list_steps(play.file.tasks, tags, options)),
        "handlers": list(_list_steps(play.file.handlers, (), options)),
    }


def _list_steps(steps: list[dict[str, Any]], outer_tags: tuple[str, ...], options: Options) -> Iterator[dict[str, Any]]:
    for step in steps:
        tags = outer_tags + split_names(step.get("tags") or [])
        if "block" in step:
            lists = {
                json_key: list(_list_steps(step[key], tags, options))
                for key, json_key in BLOCK_LISTS.items()
                if step.get(key)
            }
            yield {"block": step.get("name") or "block", "tags": list(tags), **lists}
        elif is_selected(tags, options):
            module = next((key for key in step if key in registry.NAMES), next(iter(step), ""))
            yield {"name": step.get("name") or module or "task", "module": module, "tags": list(tags)}


def _format_steps(steps: list[dict[str, Any]], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for step in steps:
        if "block" not in step:
            yield f"{indent}{step['name']}" + (f"  [{', '.join(step['tags'])}]" if step["tags"] else "")
            continue
        yield f"{indent}{step['block']}:"
        yield from _format_steps(step.get("tasks", []), depth + 1)
        for key in ("rescue", "always"):
            if key in step:
                yield f"{indent}  {key}:"
                yield from _format_steps(step[key], depth + 2)
