"""Every command that asks hosts, over an honest host and one that answers nonsense of the right shape.

The hostile host's answers are recorded ones whose values were replaced by others of the same type. Whatever they are, the command
ends with one of its exit codes and without a traceback, and the honest host's row is there.
"""

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from sparkwright.cli import namespace
from sparkwright.errors import Exit
from sparkwright.protocol.events import Event
from tests.fuzz import recording
from tests.fuzz.harness import ROUNDS, SEED
from tests.fuzz.recording import COMMANDS, HONEST, HOSTILE, CommandResult, Request

#: commands that ask no host, or are a server
WITHOUT_HOSTS = frozenset(
    (
        *("bench.compare", "bench.import", "bench.list", "bench.report", "completion", "docs.module", "explain"),
        *("hosts.list", "init", "lint", "mcp", "model.inspect", "recipe.export", "recipe.search", "render"),
        *("playbook.clean", "playbook.eject", "playbook.update"),
        *("runtime.fetch", "sandbox.down", "sandbox.fault", "sandbox.pair", "sandbox.status", "schema"),
    )
)
#: commands that ask only hosts over ssh, or one of no project yet: test_ssh_commands.py
OVER_SSH = frozenset(("hosts.add", "images.copy", "runtime.install"))
#: they share all with bench.smoke and bench.serve but their loads
LIKE_OTHERS = frozenset(("bench.ab", "bench.context", "bench.hol", "bench.itl", "bench.mixed", "bench.sweep"))
NUMBERS: tuple[Any, ...] = (0, -1, 1, 2**31, 2**53, 2**63, 10**30, 1e308, -1e308, 0.5, float("nan"), float("inf"))
TEXTS = (
    "",
    " ",
    "x",
    "a" * 5000,
    "\n",
    "\x1b[31mred",
    "[/red]",
    "{{ 7*7 }}",
    "../../x",
    "💥" * 20,
    "\u202egnp",
    "NaN",
    "٣",
    "None",
)
#: commands whose answer names no host where all is well
WITHOUT_ROWS = frozenset(("report", "lock", "lock:check", "models.prune", "monitoring.install", "recipe.import"))
#: runs of each command
ROUNDS_EACH = max(1, ROUNDS // 45)
#: fields that say what an event is: with another one it is another event, or none
KEPT_FIELDS = ("event",)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Request], Path]:
    """The recording, and a project to play it in. What commands import is imported here, once for all their children."""
    recording.import_commands()
    requests, files = recording.load_recording()
    folder = tmp_path_factory.mktemp("fleet")
    recording.write_files(files, folder)
    return requests, folder


def test_every_command_is_asked_here_or_asks_no_host() -> None:
    listed = {name.partition(":")[0] for name in COMMANDS}
    assert set(namespace.task_names) - listed - LIKE_OTHERS - WITHOUT_HOSTS - OVER_SSH == set()
    assert listed & (WITHOUT_HOSTS | LIKE_OTHERS) == set()


#: commands that are refused by hosts like those that were recorded
REFUSED = frozenset(("health.install", "health.uninstall", "rollback", "switch", "recipe.import", "gateway.rollback"))


@pytest.mark.parametrize("name", COMMANDS)
def test_honest_hosts_are_in_the_answer(name: str, project: tuple[list[Request], Path]) -> None:
    """The recording can be played with the commands of today, whose plans are compiled: none but REFUSED is refused."""
    ended = play_command(name, project, 0, hostile=False)
    assert_contained(ended, name)
    assert (ended.code == Exit.REFUSED) is (name in REFUSED), ended.out[-2000:]


@pytest.mark.parametrize("name", COMMANDS)
def test_nonsense_of_one_host_ends_no_command(name: str, project: tuple[list[Request], Path]) -> None:
    for seed in range(ROUNDS_EACH):
        assert_contained(play_command(name, project, seed), name, f"seed {SEED}:{name}:{seed}")


#: commands that one field more used to end
READERS = ("status", "doctor", "logs", "client", "recommend", "history", "lock:check", "report", "gateway.status")


def test_a_newer_host_that_tells_more_is_read_like_any_other(project: tuple[list[Request], Path]) -> None:
    """A field more everywhere, as an honest host of the next version has."""

    def newer(host: str, events: list[Event]) -> bytes:
        return recording.encode_events([add_fields(event) for event in events])

    requests, folder = project
    for name in READERS:
        ended = recording.run_command(
            recording.command_words(name), folder, {}, recording.player(name, requests, newer)
        )
        assert_contained(ended, name)
        assert "can't be used" not in ended.out, f"{name}: {ended.out}"


def test_a_failed_task_in_a_run_that_claims_success_is_that_host_s_failure(
    project: tuple[list[Request], Path],
) -> None:
    def lying(host: str, events: list[Event]) -> bytes:
        changed_events = [
            {**event, "status": "failed", "data": {}} if event["event"] == "task_finished" else event
            for event in events
        ]
        return recording.encode_events(changed_events if host == HOSTILE else events)

    requests, folder = project
    for name in ("doctor", "logs", "client", "models.list"):
        ended = recording.run_command(
            recording.command_words(name), folder, {}, recording.player(name, requests, lying)
        )
        assert_contained(ended, name)
        assert ended.code != Exit.OK, f"{name}: {ended.out}"


def play_command(name: str, project: tuple[list[Request], Path], seed: int, *, hostile: bool = True) -> CommandResult:
    """One command over both hosts."""
    requests, folder = project
    rng = random.Random(f"{SEED}:{name}:{seed}")
    as_json = name in recording.AS_JSON and rng.random() < 0.3

    target = HONEST if name.startswith("gateway.") else HOSTILE  # a gateway is on the first

    def answer(host: str, events: list[Event]) -> bytes:
        return recording.encode_events(corrupt_events(events, rng) if hostile and host == target else events)

    words = recording.command_words(name, json=as_json)
    return recording.run_command(words, folder, {}, recording.player(name, requests, answer))


def assert_contained(ended: CommandResult, name: str, context: str = "") -> None:
    """Assert that a command ended as documented, and that the honest host is in what it printed."""
    details = f"{name} {context}: exit {ended.code}\n{ended.out[-3000:]}"
    assert ended.code in list(Exit), details
    assert "Traceback" not in ended.out and "internal error" not in ended.out, details
    if recording.BOTH[1] in COMMANDS[name] and name not in WITHOUT_ROWS:
        assert HONEST in ended.out, details


# -- nonsense of the right shape -------------------------------------------------------------------------------------


def corrupt_events(events: list[Event], rng: random.Random) -> list[Event]:
    """Events with other values of the same types; now and then one too few, one twice, or in another order."""
    events_found = copy.deepcopy(events)
    share = rng.choice((0.02, 0.1, 0.4))
    events_found = [
        {name: value if name in KEPT_FIELDS else corrupt_value(value, rng, share) for name, value in event.items()}
        for event in events_found
    ]
    match rng.randrange(8):
        case 0 if events_found:
            events_found.pop(rng.randrange(len(events_found)))
        case 1 if events_found:
            events_found.append(rng.choice(events_found))
        case 2:
            rng.shuffle(events_found)
        case 3:
            events_found = [add_fields(event) for event in events_found]
        case 4:
            events_found = [{**event, "exit": 0} if event["event"] == "recap" else event for event in events_found]
    return events_found


def corrupt_value(value: Any, rng: random.Random, share: float) -> Any:
    """A value of the same type: one in so many is another, and so inside lists and objects."""
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
    """An event in which each object has a field more."""
    return {name: value if name in KEPT_FIELDS else _add_field(value) for name, value in event.items()} | {
        "of_a_newer_host": 1
    }


def _add_field(value: Any) -> Any:
    if isinstance(value, dict):
        plain = all(isinstance(part, int | float | str) and not isinstance(part, bool) for part in value.values())
        added = {} if plain else {"of_a_newer_host": {"a": [1]}}  # a table by name has no fields
        return {name: _add_field(part) for name, part in value.items()} | added
    return [_add_field(part) for part in value] if isinstance(value, list) else value
