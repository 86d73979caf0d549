"""The commands that run a playbook: deploy, plan, restart, switch, rollback, provision, verify, and play."""

from __future__ import annotations

from typing import Any

from sparkwright.app.runs import playbooks
from sparkwright.app.runs.options import DeployOptions, table
from sparkwright.cli.framework.command import Command, Option, command_of
from sparkwright.errors import Refused

OPTIONS, ROLLING = table("run"), table("rolling")


def _variables(*names: str) -> tuple[Option, ...]:
    return table("variable", *names)


#: each command with its options, in addition to OPTIONS, and its help
COMMANDS: tuple[tuple[str, tuple[Option, ...], str], ...] = (
    (
        "deploy",
        (*ROLLING, *_variables("rollback", "anyway")),
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
        (*ROLLING, *_variables("keep", "anyway")),
        """Restart a server and verify it.

        Drains requests, stops the server, waits for its memory to be released, unloads Ollama, starts and verifies.
        """,
    ),
    (
        "rollback",
        (*ROLLING, *_variables("anyway")),
        """Return to the last verified image, settings and model.

        The last verified state is recorded by each deploy and restart that passed its checks (see `history`).
        """,
    ),
    (
        "provision",
        (*ROLLING, *_variables("undo")),
        """Prepare a new host: docker group, folders, settings.

        Packages are never upgraded. Settings are those of the host's `vars:` (docs/doctor.md); --check --diff shows them first.
        """,
    ),
    (
        "verify",
        _variables("new_baseline"),
        """Check a running server: health, GPU, log, speed, text.

        Prints a table: health, GPU, engine log, prefix cache, throughput and text against the baseline. Changes nothing.
        """,
    ),
)
#: commands whose playbook has a different name, with the options that they always set
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {"plan": ("deploy", {"check": True, "diff": True})}


def _command(name: str, more: tuple[Option, ...], doc: str) -> Command:
    playbook, always = OTHERS.get(name, (name, {}))

    def body(**given: Any) -> list[int]:
        return playbooks.run(playbook, name, DeployOptions(**{**given, **always}))

    return command_of(body, name, doc, (*OPTIONS, *more))


def _play(playbook: str, **given: Any) -> list[int]:
    return playbooks.run(playbook, f"play {playbook}", DeployOptions(**given))


def _switch(to: str, **given: Any) -> list[int]:
    if not to and "/" not in given["host"]:
        raise Refused("no recipe to switch to.", fix="Name one of the host's `on_demand`: `--to RECIPE`.")
    return playbooks.run("switch", "switch", DeployOptions(**given, recipe=to))


TO: Option = ("to", "", "which recipe of the host's `on_demand` to wake")
#: options of `switch`, which always runs in full and for one server
SWITCH = (
    *table("run", "host", "check", "dry_run", "diff", "verbose", "list_tasks", "wait", "json"),
    *_variables("anyway"),
)

PLAYBOOK: Option = ("playbook", "", "playbooks/NAME.yml, or a path")
SWITCHING = command_of(
    _switch,
    "switch",
    """Wake a server that takes turns with others on its host.

    Prepares image and model, drains and stops the server that is awake, keeps it for its next turn, starts and verifies this
    one. If that fails, the other one is started again. For recipes under `on_demand` in the host's file.
    """,
    (SWITCH[0], TO, *SWITCH[1:]),
)
PLAY = command_of(
    _play, "play", "Run a playbook of your own.", (PLAYBOOK, *OPTIONS, *ROLLING, *_variables("anyway")), "playbook"
)
TASKS = {"": [*(_command(*row) for row in COMMANDS), SWITCHING, PLAY]}
