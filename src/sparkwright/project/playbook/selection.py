"""Selects tasks by --tags, --skip-tags and --start-at-task, as in Ansible, and lists them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.playbook.playbook import Options, Play, Playbook, walk_steps
from sparkwright.protocol.plan import Block, Step, Task, tasks_of

SPECIAL_TAGS = ("all", "tagged", "untagged", "always", "never")
#: JSON keys of a block's lists, by their key in playbooks
BLOCK_LISTS = {"block": "tasks", "rescue": "rescue", "always": "always"}


def select_steps(steps: tuple[Step, ...], play: Play, options: Options) -> tuple[Step, ...]:
    """Return the steps of a play to run. Raises Refused for a tag or task name that no play of the playbook has."""
    plays = [[play_data, *walk_steps(play_data.get("tasks") or [])] for play_data in play.document.data]
    known_tags = {tag for play_steps in plays for step in play_steps for tag in split_names(step.get("tags") or [])}
    for tag in (*options.tags, *options.skip_tags):
        if tag not in known_tags and tag not in SPECIAL_TAGS:
            raise Refused(f"no task has the tag {tag!r}.", fix=suggest_name(tag, known_tags, label="Tags"))
    selected_steps = _filter_steps(steps, lambda task: is_selected(task.tags, options))
    if not options.start_at_task:
        return selected_steps
    name, play_number = options.start_at_task, int(play.place[0])
    names = [[_task_name(step) for step in play_steps[1:] if "block" not in step] for play_steps in plays]
    names[play_number] = [task.name for task in tasks_of(steps)]
    start_number = next((number for number, play_names in enumerate(names) if name in play_names), None)
    if start_number is None:
        raise Refused(f"no task named {name!r}.", fix=suggest_name(name, {*itertools.chain(*names)}, label="Tasks"))
    if start_number != play_number:
        return () if play_number < start_number else selected_steps
    remaining_steps = _steps_from(selected_steps, name)
    if not remaining_steps:
        reason = "it is part of a rescue or an always, or its tags are not selected"
        raise Refused(f"a run can't start at the task {name!r}: {reason}.")
    return remaining_steps


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


def _steps_from(steps: tuple[Step, ...], name: str) -> tuple[Step, ...]:
    """Return the steps beginning with the named task, or none if it is not among the tasks that run without a failure.

    If the task is in a block, the block begins with it.
    """
    for n, step in enumerate(steps):
        if isinstance(step, Task) and step.name == name:
            return steps[n:]
        if isinstance(step, Block) and (tasks := _steps_from(step.tasks, name)):
            return (replace(step, tasks=tasks), *steps[n + 1 :])
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
            yield {"name": _task_name(step), "module": _task_module(step), "tags": list(tags)}


def _task_module(step: Mapping[str, Any]) -> str:
    return next((key for key in step if key in registry.NAMES), next(iter(step), ""))


def _task_name(step: Mapping[str, Any]) -> str:
    return str(step.get("name") or _task_module(step) or "task")


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
