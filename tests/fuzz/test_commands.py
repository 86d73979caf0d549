"""Every command that queries hosts, with an honest host and a hostile one whose answers are nonsense of the right structure.

The hostile host's answers are recorded answers whose values were replaced by others of the same type. The command must
exit with a documented code and without a traceback, and must print the row of the honest host.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright.cli import namespace
from sparkwright.errors import Exit
from sparkwright.protocol.events import Event
from tests.fuzz import recording
from tests.fuzz.harness import ROUNDS, SEED
from tests.fuzz.recording import COMMANDS, HONEST, HOSTILE, CommandResult, Request

#: commands that query no host, or are a server
WITHOUT_HOSTS = frozenset(
    (
        *("bench.compare", "bench.import", "bench.list", "bench.report", "completion", "docs.module", "explain"),
        *("hosts.list", "init", "lint", "mcp", "model.inspect", "recipe.export", "recipe.search", "render"),
        *("playbook.clean", "playbook.eject", "playbook.update"),
        *("runtime.fetch", "sandbox.down", "sandbox.fault", "sandbox.pair", "sandbox.status", "schema"),
    )
)
#: commands that need ssh, or a host outside the project: test_ssh_commands.py
OVER_SSH = frozenset(("hosts.add", "images.copy", "runtime.install"))
#: commands that differ from bench.smoke and bench.serve only in their loads
LIKE_OTHERS = frozenset(("bench.ab", "bench.context", "bench.hol", "bench.itl", "bench.mixed", "bench.sweep"))
NUMBERS: tuple[Any, ...] = (0, -1, 1, 2**31, 2**53, 2**63, 10**30, 1e308, -1e308, 0.5, float("nan"), float("inf"))
TEXTS = (
    *("", " ", "x", "a" * 5000, "\n", "\x1b[31mred", "[/red]", "{{ 7*7 }}", "../../x"),
    *("💥" * 20, "\u202egnp", "NaN", "٣", "None"),
)
#: commands whose output names no host if all is well
WITHOUT_ROWS = frozenset(("report", "lock", "lock:check", "models.prune", "monitoring.install", "recipe.import"))
#: runs of each command
ROUNDS_EACH = max(1, ROUNDS // 45)
#: fields without which an event has another type, or none
KEPT_FIELDS = ("event",)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Request], Path]:
    """The recorded requests, and a project in which to replay them."""
    recording.import_commands()
    requests, files = recording.load_recording()
    folder = tmp_path_factory.mktemp("fleet")
    recording.write_files(files, folder)
    return requests, folder


def test_every_command_that_queries_hosts_is_tested() -> None:
    listed = {name.partition(":")[0] for name in COMMANDS}
    assert set(namespace.task_names) - listed - LIKE_OTHERS - WITHOUT_HOSTS - OVER_SSH == set()
    assert listed & (WITHOUT_HOSTS | LIKE_OTHERS) == set()


#: commands that are refused by hosts like those that were recorded
REFUSED = frozenset(("health.install", "health.uninstall", "rollback", "switch", "recipe.import", "gateway.rollback"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_recording_can_be_replayed(name: str, project: tuple[list[Request], Path]) -> None:
    """Today's commands are refused only if they are in REFUSED."""
    result = replay_command(name, project, 0, hostile=False)
    assert_contained(result, name)
    assert (result.code == Exit.REFUSED) is (name in REFUSED), result.out[-2000:]


@pytest.mark.parametrize("name", COMMANDS)
def test_nonsense_from_one_host_breaks_no_command(name: str, project: tuple[list[Request], Path]) -> None:
    for seed in range(ROUNDS_EACH):
        assert_contained(replay_command(name, project, seed), name, f"seed {SEED}:{name}:{seed}")


#: commands that additional fields once broke
READERS = ("status", "doctor", "logs", "client", "recommend", "history", "lock:check", "report", "gateway.status")


@pytest.mark.parametrize("name", READERS)
def test_additional_fields_from_a_newer_host_are_ignored(name: str, project: tuple[list[Request], Path]) -> None:
    def answer(host: str, events: list[Event]) -> list[Event]:
        return [add_fields(event) for event in events]

    result = run_replay(name, project, answer)
    assert_contained(result, name)
    assert "can't be used" not in result.out, result.out


@pytest.mark.parametrize("name", ["doctor", "logs", "client", "models.list"])
def test_a_failed_task_in_a_run_that_claims_success_is_a_failure(
    name: str, project: tuple[list[Request], Path]
) -> None:
    def answer(host: str, events: list[Event]) -> list[Event]:
        failure = {"status": "failed", "data": {}} if host == HOSTILE else {}
        return [{**event, **failure} if event["event"] == "task_finished" else event for event in events]

    result = run_replay(name, project, answer)
    assert_contained(result, name)
    assert result.code != Exit.OK, result.out


def replay_command(name: str, project: tuple[list[Request], Path], seed: int, *, hostile: bool = True) -> CommandResult:
    """Run a command over both hosts, with nonsense from the hostile one."""
    rng = random.Random(f"{SEED}:{name}:{seed}")
    as_json = name in recording.AS_JSON and rng.random() < 0.3
    target = HONEST if name.startswith("gateway.") else HOSTILE  # the gateway is on the first host

    def answer(host: str, events: list[Event]) -> list[Event]:
        return corrupt_events(events, rng) if hostile and host == target else events

    return run_replay(name, project, answer, json=as_json)


def run_replay(
    name: str,
    project: tuple[list[Request], Path],
    answer: Callable[[str, list[Event]], list[Event]],
    json: bool = False,
) -> CommandResult:
    """Run a command with the recorded answers. answer: changes the events of a host."""
    requests, folder = project
    player = recording.player(name, requests, lambda host, events: recording.encode_events(answer(host, events)))
    return recording.run_command(recording.command_words(name, json=json), folder, {}, player)


def assert_contained(result: CommandResult, name: str, context: str = "") -> None:
    """Assert that a command exited as documented, and that its output has the honest host."""
    details = f"{name} {context}: exit {result.code}\n{result.out[-3000:]}"
    assert result.code in list(Exit), details
    assert "Traceback" not in result.out and "internal error" not in result.out, details
    if recording.BOTH[1] in COMMANDS[name] and name not in WITHOUT_ROWS:
        assert HONEST in result.out, details


# -- nonsense of the right structure ---------------------------------------------------------------------------------


def corrupt_events(events: list[Event], rng: random.Random) -> list[Event]:
    """Return events with other values of the same types; sometimes an event is missing, repeated or out of order."""
    share = rng.choice((0.02, 0.1, 0.4))
    corrupted = [
        {name: value if name in KEPT_FIELDS else corrupt_value(value, rng, share) for name, value in event.items()}
        for event in copy.deepcopy(events)
    ]
    match rng.randrange(8):
        case 0 if corrupted:
            corrupted.pop(rng.randrange(len(corrupted)))
        case 1 if corrupted:
            corrupted.append(rng.choice(corrupted))
        case 2:
            rng.shuffle(corrupted)
        case 3:
            corrupted = [add_fields(event) for event in corrupted]
        case 4:
            corrupted = [{**event, "exit": 0} if event["event"] == "recap" else event for event in corrupted]
    return corrupted


def corrupt_value(value: Any, rng: random.Random, share: float) -> Any:
    """Return a value of the same type in which this share of the values is replaced."""
    if isinstance(value, dict):
        if value and rng.random() < share / 4:
            return dict(list(value.items())[: rng.randrange(len(value))])
        return {name: corrupt_value(part, rng, share) for name, part in value.items()}
    if isinstance(value, list):
        if rng.random() < share / 2:
            return rng.choice(([], value[:1], value * 3))
        return [corrupt_value(part, rng, share) for part in value]
    if rng.random() >= share:
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice(NUMBERS)
    if isinstance(value, str):
        return rng.choice((*TEXTS, value + rng.choice(TEXTS), value[: len(value) // 2]))
    return rng.choice((None, 0, "", [], {}))


def add_fields(event: Event) -> Event:
    """Return the event with an additional field in each object."""
    return {name: value if name in KEPT_FIELDS else _add_field(value) for name, value in event.items()} | {
        "of_a_newer_host": 1
    }


def _add_field(value: Any) -> Any:
    if isinstance(value, dict):
        plain = all(isinstance(part, int | float | str) and not isinstance(part, bool) for part in value.values())
        added = {} if plain else {"of_a_newer_host": {"a": [1]}}  # a mapping by name has no fields
        return {name: _add_field(part) for name, part in value.items()} | added
    return [_add_field(part) for part in value] if isinstance(value, list) else value
