"""Observe the output and exit code of each command in each state of a server, and what a client gets at the same time.

    python -m tests.e2e.states --print [STATE ...]      prints the rows as observed now, in the format of states.yml

A row is a fault of the sandbox, or something that a person does to the container. Its cells are in the order of COLUMNS: the
commands that only read, one after the other; then `deploy` and `restart`, each with the fault injected again; then the fix.
When a command reports that a server works, a client checks this with a streaming request to the published port.
"""

import argparse
import http.client
import itertools
import json
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparkwright.sandbox import control
from sparkwright.sandbox.faults import START_FAULTS
from tests.cells import join_whitespace, matches_cell
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project

TABLE = Path(__file__).with_name("states.yml")
#: a cell that is not filled in yet
UNSPECIFIED = "?"
#: commands that only read; `checked` is status after the check that health makes
READ_COLUMNS = ("status", "health", "checked", "verify", "diagnose", "plan")
CHANGE_COLUMNS = ("deploy", "restart")
#: `fixed` is deploy after the fault is cleared; these columns follow it
FIXED_COLUMNS = ("fixed-health", "fixed-status")
COLUMNS = (*READ_COLUMNS, *CHANGE_COLUMNS, "fixed", *FIXED_COLUMNS)
#: columns where exit code 0 means that a client is served
PROMISING_COLUMNS = ("health", "checked", "verify", *CHANGE_COLUMNS, "fixed", *FIXED_COLUMNS)
#: columns that also measure the speed
MEASURING_COLUMNS = ("verify", "restart")
CHECK_COMMAND = ("health", "--token-s", "2")
COMMANDS = {
    "checked": ("status",),
    "health": CHECK_COMMAND,
    "fixed": ("deploy",),
    "fixed-health": CHECK_COMMAND,
    "fixed-status": ("status",),
}
TOKENS, SLOW, NOTHING = "tokens", "slow", "nothing"
#: the sandbox generates a token in 0.021 s, a slow one in 0.175 s
MAX_TOKEN_INTERVAL_S = 0.06
REQUESTED_TOKENS = 8
CLIENT_TIMEOUT_S = 2.0
#: how long a client waits for a server that starts
SETTLE_S = 3.0
#: messages of commands that could not measure because this machine was too busy
BUSY_MESSAGES = ("client is too slow", "running or waiting")
TRIES = 4

#: what a person does to the container
MANUAL_ACTIONS: dict[str, Callable[[Any], None]] = {
    "stopped-by-hand": lambda api: api.stop("qwen35", timeout=1),
    "removed-by-hand": lambda api: api.remove_container("qwen35", force=True),
    "restarted-by-hand": lambda api: api.restart("qwen35", timeout=1),
}
#: faults that change the host's memory over time, so that each command would find another state: test_host_saved.py tests them
MEMORY_FAULTS = ("overshoot", "unkillable", "other-program", "leak")
STATES = ("healthy", *MANUAL_ACTIONS, *(fault for fault in control.FAULTS if fault not in MEMORY_FAULTS))


@dataclass
class Observation:
    """A cell: the command's result, and what a client got right after it ("" without a client)."""

    result: CommandResult
    client: str = ""

    @property
    def text(self) -> str:
        return self.result.out + self.result.err


class FaultySpark:
    """A deployed and checked sandbox that is broken and fixed again, state by state."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project
        self._observe_column("health")

    @property
    def docker(self) -> Any:
        """A new connection: the sandbox closes idle ones."""
        return self.project.docker().api

    def observe(self, state: str, columns: Collection[str] = COLUMNS) -> dict[str, Observation]:
        """Return some cells of a row. Afterwards the server is as the fix left it."""
        observations: dict[str, Observation] = {}
        self._clear_flapping()
        self._break(state)
        for column in (item for item in READ_COLUMNS if item in columns):
            observations[column] = self._observe_column(column)
        for column in (item for item in CHANGE_COLUMNS if item in columns):
            observations[column] = self._observe_column(column, lambda: self._restart_state(state))
        control.set_fault(self.project.sandbox, None)
        if "fixed" in columns:
            observations["fixed"] = self._observe_column("fixed")
        self._restore()
        for column in (item for item in FIXED_COLUMNS if item in columns):
            observations[column] = self._observe_column(column)
        if state in START_FAULTS:  # a server that started with the fault still has it, and may generate tokens
            self._observe_column("restart")
        return {column: observations[column] for column in COLUMNS if column in observations}

    def _observe_column(self, column: str, before: Callable[[], None] = lambda: None) -> Observation:
        """Run a command, again while this machine is too busy for it, and a client if the command promises one something.

        `before` is called before each try, because a command may change the host before it fails to measure.
        """
        for _ in range(TRIES):
            before()
            self._wait_for_start()
            result = self.project.run(*COMMANDS.get(column, (column,)), "--host", "sandbox")
            if result.code != 4 or not any(item in result.out for item in BUSY_MESSAGES):
                break
        return Observation(result, self.client() if column in PROMISING_COLUMNS else "")

    def _restart_state(self, state: str) -> None:
        self._restore()
        self._break(state)

    def _break(self, state: str) -> None:
        if state in MANUAL_ACTIONS:
            MANUAL_ACTIONS[state](self.docker)
        elif state in control.FAULTS:
            control.set_fault(self.project.sandbox, state)

    def _clear_flapping(self) -> None:
        """Clear the record of earlier changes, which would count as flapping."""
        path = self.project.sandbox / "home/.local/state/sparkwright/health-remembered.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "seen": record["seen"][-1:]}))

    def _restore(self) -> None:
        """Clear the fault, and repair the server."""
        control.set_fault(self.project.sandbox, None)
        for command in ("", "restart", "deploy"):
            if command:
                self._observe_column(command)
            if self.client() == TOKENS:
                return
        raise AssertionError("the sandbox can't be repaired")

    def _wait_for_start(self) -> None:
        """Wait until the server is up, at most SETTLE_S."""
        deadline_s = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline_s:
            rows = [row for row in self.docker.containers(all=True) if row["Names"] == ["/qwen35"]]
            if not rows or rows[0]["State"] not in ("running", "restarting") or self.project.is_up():
                return
            time.sleep(0.05)

    def client(self) -> str:
        """Send a streaming request. Return TOKENS, SLOW or NOTHING."""
        self._wait_for_start()
        connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=CLIENT_TIMEOUT_S)
        request = {"model": "qwen3.5-35b", "prompt": "Count.", "max_tokens": REQUESTED_TOKENS, "stream": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
            times_s = [time.monotonic() for _ in _stream_tokens(connection.getresponse())]
        except (OSError, http.client.HTTPException):
            return NOTHING
        finally:
            connection.close()
        if len(times_s) < REQUESTED_TOKENS:
            return NOTHING
        interval_s = statistics.median(after - before for before, after in itertools.pairwise(times_s))
        return TOKENS if interval_s < MAX_TOKEN_INTERVAL_S else SLOW


def _stream_tokens(answer: http.client.HTTPResponse) -> Iterator[str]:
    for line in answer:
        if line.startswith(b"data: {"):
            piece = json.loads(line[6:])["choices"]
            if piece and piece[0]["text"]:
                yield piece[0]["text"]


# -- the table ---------------------------------------------------------------------------------------------------------


def load_table() -> dict[str, dict[str, str]]:
    """Return the rows of states.yml: by state, by column, "CODE text of the screen"."""
    return yaml.safe_load(TABLE.read_text())  # type: ignore[no-any-return]


def specified_columns(row: dict[str, str]) -> set[str]:
    return {column for column in COLUMNS if row[column] != UNSPECIFIED}


def find_mismatches(row: dict[str, str], observations: dict[str, Observation]) -> list[str]:
    """Return the differences from the row, and the broken promises."""
    mismatches = []
    for column, seen in observations.items():
        if not matches_cell(row[column], seen.result.code, seen.text):
            text = join_whitespace(seen.text)[-600:]
            mismatches.append(f"{column}: expected {row[column]!r}, got {seen.result.code}: {text}")
    return [
        *mismatches,
        *(item for column, seen in observations.items() for item in find_broken_promises(column, seen)),
    ]


def find_broken_promises(column: str, observation: Observation) -> Iterator[str]:
    """Yield a success that the client did not see. The states `starting`, and `up` before any token, promise nothing."""
    result, client = observation.result, observation.client
    poor = client == NOTHING or (client == SLOW and column in MEASURING_COLUMNS)
    promising = column in PROMISING_COLUMNS and not re.search(r"(?m)\bstarting\b|^sandbox +up\b", result.out)
    if poor and promising and result.code == 0:
        yield f"{column} ended with 0, and a client gets {client}: {join_whitespace(observation.text)[-600:]}"


#: the text of a printed cell, by command: the first pattern that matches
CELL_PATTERNS = {
    "status": [r"(?m)^sandbox +(?P<said>[a-z-]+(?: progress)?) .*?(?: ago|now, no schedule)(?P<more> *[^\n]*)$"],
    "verify": [r"(?m)^\w+ +Summarize the checks +(?P<said>[^\n]+)"],
    "diagnose": [r"\A(?:\w+: +)?(?P<said>[^\n]+)"],
    "health": [r"(?m)^\w+ +Check the server's health +(?:\([^)]*\) +)?(?P<said>[^\n]+)"],
    "": [r"(?m)^failed +(?P<said>[^\n]+)", r"(?P<said>changed=\d+)"],
}
#: figures differ in each run
FIGURE = re.compile(
    r"\S*\d\S*(?: (?:of|s|ms|tok/s|GiB|MB|GB|C|W|%)\b)*(?:,? \S*\d\S*(?: (?:s|ms|tok/s|GiB|MB|GB|C|W|%)\b)*)*"
)


def format_row(state: str, observations: dict[str, Observation]) -> str:
    """Format a row like states.yml, with the client's answers as comments."""
    lines = [f"{state}:"]
    for column, observation in observations.items():
        client = f"   # client: {observation.client}" if observation.client else ""
        cell = json.dumps(f"{observation.result.code} {extract_cell_text(column, observation)}", ensure_ascii=False)
        lines += [f"  {column}: {cell}{client}", *(f"  # {item}" for item in find_broken_promises(column, observation))]
    return "\n".join(lines)


def extract_cell_text(column: str, observation: Observation) -> str:
    """Return the distinctive part of a screen without its figures: state and reason, summary, first failure or changes."""
    kind = COMMANDS.get(column, (column,))[0]
    for pattern in [*CELL_PATTERNS.get(kind, []), *CELL_PATTERNS[""]]:
        if match := re.search(pattern, observation.text):
            message = " ".join(match.groupdict(default="").values())
            if message.startswith("changed="):
                return message
            return re.sub(r"( \.\.\.)+", " ...", join_whitespace(FIGURE.sub("...", message))).strip(" .")
    return join_whitespace(observation.text)[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", required=True, help="observe and print")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="columns, separated by commas")
    parser.add_argument("--whole", action="store_true", help="also print the screens")
    parser.add_argument("states", nargs="*", metavar="STATE")
    arguments = parser.parse_args()
    if unknown := set(arguments.states) - set(STATES):
        parser.error(f"no state {', '.join(sorted(unknown))}: there are {', '.join(STATES)}")
    with sandbox_project() as project:
        project.deployed()
        spark = FaultySpark(project)
        for state in arguments.states or STATES:
            observations = spark.observe(state, arguments.columns.split(","))
            print(format_row(state, observations), flush=True)
            for column, observation in observations.items() if arguments.whole else ():
                print(f"\n--- {state}: {column}\n{observation.text}", flush=True)


if __name__ == "__main__":
    main()
