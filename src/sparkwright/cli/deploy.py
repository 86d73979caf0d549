"""The commands that run a playbook: deploy, plan, restart, switch, rollback, provision, verify, and any of the user's."""

from __future__ import annotations

from typing import Any

from sparkwright.app.runs import playbooks
from sparkwright.cli.framework.command import Command, Option, command_of
from sparkwright.errors import Refused

OPTIONS: tuple[Option, ...] = (
    ("host", "", "which hosts: spark1, spark1,spark2, a group, all, lab:!spark3, spark*"),
    ("recipe", "", "of a host that serves several: only the server of this recipe"),
    ("check", False, "dry run: show what would change; exit code 2 if anything would"),
    ("dry_run", False, "the same as --check"),
    ("diff", False, "show what differs, field by field"),
    ("verbose", False, "on a terminal: every task, skipped and unchanged ones too, not a line a stage"),
    ("tags", "", "run only tasks with one of these tags, comma separated"),
    ("skip_tags", "", "skip tasks with one of these tags"),
    ("start_at_task", "", "start at the task of this name"),
    ("list_tasks", False, "list the tasks and exit; with --json one object: plays, each with its tasks"),
    ("wait", False, "wait for the lock instead of exiting with code 5"),
    ("json", False, "events as JSON lines on stdout, nothing else there; each host's recap comes last"),
)

#: options for rolling runs of the commands that change hosts
ROLLING: tuple[Option, ...] = (
    ("canary", 0, "run on N canary hosts first; if one fails, no other host is touched"),
    ("serial", "", "batch size: 1, 25%, or 1,25% (default: the playbook's)"),
    ("max_fail_percentage", "", "stop when more than this share of a batch failed (default: at the first failure)"),
    ("resume", False, "continue the last rolling run with the hosts that are left"),
    ("skip_unreachable", False, "skip unreachable hosts instead of refusing to start"),
)

KEEP_FAILED: Option = ("rollback", True, "keep the failed server instead of restoring the previous one")

ANYWAY: Option = ("anyway", False, "start a configuration with which the host went down before")

KEEP: Option = ("keep", False, "keep the page cache too, where it fits; refused unless the verified server runs")

UNDO: Option = ("undo", False, "restore the host's settings as they were before `provision` made them")

NEW_BASELINE: Option = (
    "new_baseline",
    False,
    "keep the measured rate and text as the new baseline instead of comparing",
)

#: command, its options besides OPTIONS, its help
COMMANDS: tuple[tuple[str, tuple[Option, ...], str], ...] = (
    (
        "deploy",
        (*ROLLING, KEEP_FAILED, ANYWAY),
        """Deploy a host's recipe and verify the server.

        Pulls image and model, checks that they fit, replaces the running server and verifies the new one. If that fails, the
        previous server is restored. Hosts without changes are skipped.
        """,
    ),
    (
        "plan",
        (),
        "Show what deploy would change, field by field.\n\nChanges nothing. Exit code 2 if anything would change.",
    ),
    (
        "restart",
        (*ROLLING, KEEP, ANYWAY),
        """Restart a server and verify it.

        Drains requests, stops the server, waits for its memory to be released, unloads Ollama, starts and verifies.
        """,
    ),
    (
        "rollback",
        (*ROLLING, ANYWAY),
        """Return to the last verified image, settings and model.

        The last verified state is recorded by each deploy and restart that passed its checks (see `history`).
        """,
    ),
    (
        "provision",
        (*ROLLING, UNDO),
        """Prepare a new host: docker group, folders, settings.

        Packages are never upgraded. Settings are those of the host's `vars:` (docs/doctor.md); --check --diff shows them first.
        """,
    ),
    (
        "verify",
        (NEW_BASELINE,),
        """Check a running server: health, GPU, log, speed, text.

        Prints a table: health, GPU, engine log, prefix cache, throughput and text against the baseline. Changes nothing.
        """,
    ),
)
#: commands whose playbook has another name, with the options that they always set
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {"plan": ("deploy", {"check": True, "diff": True})}


def _command(name: str, more: tuple[Option, ...], doc: str) -> Command:
    playbook, always = OTHERS.get(name, (name, {}))

    def body(**given: Any) -> list[int]:
        return playbooks.run(playbook, name, **{**given, **always})

    return command_of(body, name, doc, (*OPTIONS, *more))


def _play(playbook: str, **given: Any) -> list[int]:
    return playbooks.run(playbook, f"play {playbook}", **given)


def _switch(to: str, **given: Any) -> list[int]:
    if not to and "/" not in given["host"]:
        raise Refused("no recipe to switch to.", fix="Name one of the host's `on_demand`: `--to RECIPE`.")
    return playbooks.run("switch", "switch", **{**PARTS, **given, "recipe": to})


TO: Option = ("to", "", "which recipe of the host's `on_demand` to wake")
#: options of `switch`, which is always run completely for one server
SWITCH = (
    *(
        option
        for option in OPTIONS
        if option[0] in ("host", "check", "dry_run", "diff", "verbose", "list_tasks", "wait", "json")
    ),
    ANYWAY,
)
PARTS = {"tags": "", "skip_tags": "", "start_at_task": ""}

PLAYBOOK: Option = ("playbook", "", "playbooks/NAME.yml, or a path")
SWITCHING = command_of(
    _switch,
    "switch",
    """Wake a server that shares its host's memory by turns.

    Prepares image and model, drains and stops the server that is awake, keeps it for its next turn, starts and verifies this
    one. If that fails, the other one is started again. For recipes under `on_demand` in the host's file.
    """,
    (SWITCH[0], TO, *SWITCH[1:]),
)
PLAY = command_of(_play, "play", "Run a playbook of your own.", (PLAYBOOK, *OPTIONS, *ROLLING, ANYWAY), "playbook")
TASKS = {"": [*(_command(*row) for row in COMMANDS), SWITCHING, PLAY]}
