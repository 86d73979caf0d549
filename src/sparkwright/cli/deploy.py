"""The commands that run a playbook: deploy, restart, provision, verify, plan, and any playbook of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from invoke.tasks import Task

from sparkwright.app.outcome import reporting, worst

#: option, default, what `--help` says
OPTIONS: tuple[tuple[str, str | bool | int, str], ...] = (
    ("host", "", "which hosts: spark1, spark1,spark2, a group, all, lab:!spark3, spark*"),
    ("check", False, "dry run: show what would change (exit code 2 if anything would)"),
    ("dry_run", False, "the same as --check"),
    ("diff", False, "show what differs, field by field"),
    ("tags", "", "only the tasks with one of these tags, comma separated"),
    ("skip_tags", "", "not the tasks with one of these tags"),
    ("start_at_task", "", "begin with the task of this name"),
    ("list_tasks", False, "list the tasks and exit; with --json one object: plays, each with its tasks"),
    ("wait", False, "when somebody else works on the host, wait for him instead of ending with 5"),
    ("json", False, "events as JSON lines on stdout, nothing else there; the last ones are the recaps"),
    ("debug", False, "show the traceback of an error"),
)

#: options of the commands that change hosts: how they go over many of them
ROLLING: tuple[tuple[str, str | bool | int, str], ...] = (
    ("canary", 0, "so many hosts first, alone; when one of them fails nothing more is begun"),
    ("serial", "", "how many hosts at a time: 1, 25%, or 1,25%; else as the playbook says"),
    ("max_fail_percentage", "", "go on unless more than this of a batch failed; else the first failure stops"),
    ("resume", False, "go on with the hosts that are left of the last such run"),
    ("skip_unreachable", False, "leave out who can't be reached, instead of beginning nothing"),
)

#: command, playbook, what it always sets, what `invoke --list` says
COMMANDS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("deploy", "deploy", {}, "Take a host from what it is to a verified vLLM server."),
    (
        "plan",
        "deploy",
        {"check": True, "diff": True},
        "Show what deploy would change, field by field; touches nothing.",
    ),
    ("restart", "restart", {}, "Stop, wait for the memory, unload Ollama, start, verify."),
    ("rollback", "rollback", {}, "Go back to the last verified state: image digest, settings, model revision."),
    ("provision", "provision", {}, "Prepare a new host: docker group, folders; never upgrades packages."),
    ("verify", "verify", {}, "Prove what runs: health, the engine's own log, prefix cache, throughput; a table."),
)


#: options that only one command has
ONLY: dict[str, tuple[tuple[str, str | bool | int, str], ...]] = {
    **dict.fromkeys(("restart", "rollback", "provision", "play"), ROLLING),
    "deploy": (
        *ROLLING,
        ("rollback", True, "put the old server back when the new one fails; --no-rollback keeps the failed one"),
    ),
}


def run_playbook(playbook: str, command: str, **given: Any) -> int:
    """Run a playbook on the hosts of a pattern. Returns the exit code: the worst of the hosts'.

    command: how to give it again, as `restart`.
    """
    given["check"] = given["check"] or given["dry_run"]
    if given["list_tasks"]:
        from sparkwright.app import session

        return session.list_tasks(playbook, session.options(**given), json=given["json"])
    from sparkwright.app.connect import left_of, need_of, reach

    pattern = left_of(playbook, given["host"]) if given.get("resume") else given["host"]
    chosen = reach(pattern, need_of(playbook))
    from sparkwright.app import session  # what plans is imported while the connections open
    from sparkwright.app.rollout import Asked

    asked = Asked(command, **{name: given[name] for name, _, _ in ROLLING if name in given})
    return worst(session.run(chosen, playbook, session.options(**given), asked, json=given["json"]))


def _command(name: str, playbook: str, always: dict[str, Any], doc: str) -> Task[Any]:
    def body(context: object, **given: Any) -> int:
        return run_playbook(playbook, name, **{**given, **always})

    return _task(body, name, doc)


def _play(context: object, playbook: str, **given: Any) -> int:
    return run_playbook(playbook, f"play {playbook}", **given)


def _task(body: Callable[..., int], name: str, doc: str, *positional: str) -> Task[Any]:
    """An Invoke task with every option of OPTIONS; Invoke reads names and defaults off the signature."""
    command = reporting(body)
    command.__name__, command.__doc__ = name, doc
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    words = [inspect.Parameter(word, kind) for word in ("context", *positional)]
    options = (*OPTIONS, *ONLY.get(name, ()))
    flags = [inspect.Parameter(option, kind, default=default) for option, default, _ in options]
    command.__signature__ = inspect.Signature(words + flags)  # type: ignore[attr-defined]
    command_help = {option.replace("_", "-"): text for option, _, text in options}
    if positional:
        command_help["playbook"] = "playbooks/NAME.yml, or a path"
    return Task(command, name=name, positional=positional, help=command_help)


TASKS = [
    *(_command(*row) for row in COMMANDS),
    _task(_play, "play", "Run any playbook: playbooks/NAME.yml, or a path.", "playbook"),
]
