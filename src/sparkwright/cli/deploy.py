"""The commands that run a playbook: deploy, plan, restart, switch, rollback, provision, verify, and play."""

from __future__ import annotations

from typing import Any

from sparkwright.app.runs import playbooks
from sparkwright.app.runs.deploy_options import DeployOptions, option_rows
from sparkwright.cli.framework.command import Command, Option, build_command
from sparkwright.errors import Refused

RUN_OPTIONS, ROLLING_OPTIONS = option_rows("run"), option_rows("rolling")


def _variable_options(*names: str) -> tuple[Option, ...]:
    return option_rows("variable", *names)


#: each command with its options, in addition to RUN_OPTIONS, and its help
COMMANDS: tuple[tuple[str, tuple[Option, ...], str], ...] = (
    (
        "deploy",
        (*ROLLING_OPTIONS, *_variable_options("rollback", "anyway")),
        """Deploy a host's recipe and verify the server.

        Pulls image and model, checks that they fit, replaces the running server and verifies the new one. If that fails, the
        previous server is restored. Hosts without changes are skipped. Missing pins are added to spark.lock. If a deployed
        gateway is in front of a changed server, `gateway.deploy` follows.
        """,
    ),
    (
        "plan",
        (),
        """Show what deploy would change, field by field.

        Changes nothing and sends no test load: the tests of a running server that was not verified are listed as `later`. Exit
        code 2 if anything would change.
        """,
    ),
    (
        "restart",
        (*ROLLING_OPTIONS, *_variable_options("keep", "anyway")),
        """Restart a server and verify it.

        Unloads Ollama's models, drains requests, stops the server, waits for its memory to be released, starts and verifies it.
        Refused if the container does not match the recipe: `deploy` replaces it.
        """,
    ),
    (
        "rollback",
        (*ROLLING_OPTIONS, *_variable_options("anyway")),
        """Roll back to the last verified image, settings and model.

        The last verified state is recorded by each deploy and restart that passed its checks (see `history`).
        """,
    ),
    (
        "provision",
        (*ROLLING_OPTIONS, *_variable_options("undo")),
        """Prepare a new host: docker group, folders, settings.

        Packages are never upgraded. Settings are those of the host's `vars:` (docs/doctor.md); --check --diff shows them first.
        """,
    ),
    (
        "verify",
        _variable_options("new_baseline"),
        """Check a running server: health, GPU, log, speed, text.

        Prints health, GPU, engine log and prefix cache, and compares throughput and text with the baseline. The first
        measurement, or one with --new-baseline, becomes the baseline; nothing else is changed.
        """,
    ),
)
#: commands whose playbook has a different name, with the options that they always set
PLAYBOOK_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {"plan": ("deploy", {"check": True, "diff": True})}


def _build_command(name: str, extra_options: tuple[Option, ...], doc: str) -> Command:
    playbook, fixed_options = PLAYBOOK_ALIASES.get(name, (name, {}))

    def body(**arguments: Any) -> list[int]:
        return playbooks.run(playbook, name, DeployOptions(**{**arguments, **fixed_options}))

    return build_command(body, name, doc, (*RUN_OPTIONS, *extra_options))


def _run_play(playbook: str, **arguments: Any) -> list[int]:
    return playbooks.run(playbook, f"play {playbook}", DeployOptions(**arguments))


def _run_switch(to: str, **arguments: Any) -> list[int]:
    if not to and "/" not in arguments["host"]:
        raise Refused("no recipe to switch to.", fix="Name one of the host's `on_demand`: `--to RECIPE`.")
    return playbooks.run("switch", "switch", DeployOptions(**arguments, recipe=to))


TO_OPTION: Option = ("to", "", "the recipe in the host's `on_demand` to wake")
#: options of `switch`, which always runs in full and for one server
SWITCH_OPTIONS = (
    *option_rows("run", "host", "check", "dry_run", "diff", "verbose", "list_tasks", "wait", "json"),
    *_variable_options("anyway"),
)

PLAYBOOK_OPTION: Option = ("playbook", "", "playbooks/NAME.yml, or a path")
SWITCH_COMMAND = build_command(
    _run_switch,
    "switch",
    """Wake a server that takes turns with others on its host.

    Prepares image and model, drains and stops the server that is awake, keeps it for its next turn, and starts and verifies the
    new one. If that fails, the stopped server is started again. For recipes under `on_demand` in the host's file.
    """,
    (SWITCH_OPTIONS[0], TO_OPTION, *SWITCH_OPTIONS[1:]),
)
PLAY_COMMAND = build_command(
    _run_play,
    "play",
    "Run a playbook of your own.",
    (PLAYBOOK_OPTION, *RUN_OPTIONS, *ROLLING_OPTIONS, *_variable_options("anyway")),
    "playbook",
)
TASKS = {"": [*(_build_command(*row) for row in COMMANDS), SWITCH_COMMAND, PLAY_COMMAND]}
