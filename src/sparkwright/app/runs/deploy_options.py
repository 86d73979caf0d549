"""Options of the commands that run a playbook. The command line, API, cache key and rollout policy are derived from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sparkwright.project.rollout_policy import RolloutPolicy

#: kind of an option: one for all playbooks, one for rolling runs, or a variable of some playbooks
Kind = Literal["run", "rolling", "variable"]
#: options that affect only the output
OUTPUT_OPTIONS = ("json", "verbose")
#: options with which plans are not cached: the run only lists its tasks, or covers several hosts or clusters
UNCACHED_OPTIONS = ("list_tasks", "canary", "serial", "max_fail_percentage", "resume", "skip_unreachable")


def _option(default: bool | int | str, help: str, kind: Kind = "run") -> Any:
    return field(default=default, metadata={"help": help, "kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """Options of a command that runs a playbook, with their defaults and help texts."""

    host: str = _option("", "which hosts: spark1, spark1,spark2, a group, all, lab:!spark3, spark*")
    recipe: str = _option("", "only the server with this recipe, on hosts with several servers")
    check: bool = _option(False, "dry run: show what would change; exit code 2 if anything would")
    dry_run: bool = _option(False, "the same as --check")
    diff: bool = _option(False, "show what differs, field by field")
    verbose: bool = _option(
        False, "on a terminal: one line per task, including skipped and unchanged tasks, instead of per stage"
    )
    tags: str = _option("", "run only tasks with one of these tags, comma separated, or the tag `always`")
    skip_tags: str = _option("", "skip tasks with one of these tags")
    start_at_task: str = _option("", "start at the task of this name")
    list_tasks: bool = _option(False, "list the tasks and exit; with --json one object: plays, each with its tasks")
    wait: bool = _option(False, "wait up to 4 hours for the lock instead of exiting with code 5 (`verify`: 4)")
    json: bool = _option(False, "print only events, as JSON lines; each host's recap comes last")

    canary: int = _option(
        RolloutPolicy.canary, "run on N canary hosts first; if one fails, no other host is touched", "rolling"
    )
    serial: str = _option("", "batch size: 1, 25%, or 1,25% (default: the playbook's)", "rolling")
    max_fail_percentage: str = _option(
        "", "stop when more than this share of a batch failed (default: at the first failure)", "rolling"
    )
    resume: bool = _option(False, "continue the last rolling run with the remaining hosts", "rolling")
    skip_unreachable: bool = _option(False, "skip unreachable hosts instead of refusing to start", "rolling")

    rollback: bool = _option(True, "keep the failed server instead of restoring the previous one", "variable")
    anyway: bool = _option(
        False, "start the server even if the host went down with this configuration before", "variable"
    )
    keep: bool = _option(
        False, "keep the page cache too, if it fits; refused unless the verified server is running", "variable"
    )
    undo: bool = _option(False, "restore the host's settings from before `provision` changed them", "variable")
    new_baseline: bool = _option(
        False, "keep the measured rate and text as the new baseline instead of comparing", "variable"
    )

    def cache_key(self) -> dict[str, Any]:
        """Return the options that identify a cached plan, as plain JSON."""
        return {name: value for name, value in asdict(self).items() if name not in OUTPUT_OPTIONS}

    def is_cacheable(self) -> bool:
        """Return True if plans made with these options may be cached."""
        return all(
            getattr(self, option.name) == option.default for option in fields(self) if option.name in UNCACHED_OPTIONS
        )

    def variables(self) -> dict[str, Any]:
        """Return the playbook variables whose values differ from the defaults."""
        return {
            name: getattr(self, name) for name, default, _ in option_rows("variable") if getattr(self, name) != default
        }


def option_rows(kind: Kind, *names: str) -> tuple[tuple[str, Any, str], ...]:
    """Return the name, default and help of the options of a kind; if names are passed, only of those options."""
    return tuple(
        (option.name, option.default, option.metadata["help"])
        for option in fields(DeployOptions)
        if option.metadata["kind"] == kind and (not names or option.name in names)
    )
