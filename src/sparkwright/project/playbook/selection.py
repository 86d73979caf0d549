"""Select tasks by --tags, --skip-tags and --start-at-task, as Ansible does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.project.playbook.playbook import Options
from sparkwright.protocol.plan import Block, Step, Task, tasks_of

SPECIAL = ("all", "tagged", "untagged", "always", "never")


def select(steps: tuple[Step, ...], options: Options) -> tuple[Step, ...]:
    """Return the steps to run. Raises Refused for an unknown tag or task name."""
    everything = tasks_of(steps)
    known = {tag for task in everything for tag in task.tags}
    for tag in (*options.tags, *options.skip_tags):
        if tag not in known and tag not in SPECIAL:
            raise Refused(f"no task has the tag {tag!r}.", fix=nearest(tag, known, many="Tags"))
    kept = _filter(steps, lambda task: wanted(task.tags, options))
    return _from(kept, options.start_at_task, [task.name for task in everything]) if options.start_at_task else kept


def wanted(tags: tuple[str, ...], options: Options) -> bool:
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


def words(given: list[str] | str) -> tuple[str, ...]:
    """Return tags, or names of handlers, given as a list or as `a, b`."""
    found = given.split(",") if isinstance(given, str) else given
    return tuple(word for word in map(str.strip, found) if word)


def _filter(steps: tuple[Step, ...], keep: Callable[[Task], bool]) -> tuple[Step, ...]:
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Task):
            kept += [step] if keep(step) else []
            continue
        inside = _filter(step.tasks, keep)
        if inside:
            rescue, always = _filter(step.rescue, keep), _filter(step.always, keep)
            kept.append(replace(step, tasks=inside, rescue=rescue, always=always))
    return tuple(kept)


def _from(steps: tuple[Step, ...], name: str, names: list[str]) -> tuple[Step, ...]:
    """Return the steps from the task of this name on; a block that holds the task starts there."""
    if name not in names:
        raise Refused(f"no task named {name!r}.", fix=nearest(name, names, many="Tasks"))
    for n, step in enumerate(steps):
        if isinstance(step, Task) and step.name == name:
            return steps[n:]
        if isinstance(step, Block) and name in [task.name for task in tasks_of(step.tasks)]:
            return (replace(step, tasks=_from(step.tasks, name, names)), *steps[n + 1 :])
    return ()
