"""What each command says of each fault, how it ends, and what a client gets meanwhile.

    python -m tests.e2e.states --print [STATE ...]      the table as it is observed now, in the form of states.yml

A row is a fault of the sandbox, or something that a person does to the container. Its cells are in the order of COLUMNS: the
commands that only read, one after the other; then `deploy` and `restart`, each beside the fault anew; then the fix.
A command that says that a server serves is held to it by a client: a streaming request to the published port.
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
#: a cell that nobody has filled in yet
UNSPECIFIED = "?"
#: commands that only read; `checked` is status again, after the check that health makes
READ_COLUMNS = ("status", "health", "checked", "verify", "diagnose", "plan")
CHANGE_COLUMNS = ("deploy", "restart")
#: `fixed` is deploy once the fault is gone; what follows is of the server that serves again
FIXED_COLUMNS = ("fixed-health", "fixed-status")
COLUMNS = (*READ_COLUMNS, *CHANGE_COLUMNS, "fixed", *FIXED_COLUMNS)
#: columns whose exit code 0 promises that a client is served
PROMISING_COLUMNS = ("health", "checked", "verify", *CHANGE_COLUMNS, "fixed", *FIXED_COLUMNS)
#: and these have measured how fast
MEASURING_COLUMNS = ("verify", "restart")
CHECK_COMMAND = ("health", "--token-s", "2")
COMMANDS = {
    "checked": ("status",),
    "health": CHECK_COMMAND,
    "fixed": ("deploy",),
    "fixed-health": CHECK_COMMAND,
    "fixed-status": ("status",),
}
#: what a client gets
TOKENS, SLOW, NOTHING = "tokens", "slow", "nothing"
#: seconds between two tokens: the sandbox gives one in 0.021, when it is slow in 0.175
MAX_TOKEN_INTERVAL_S = 0.06
REQUESTED_TOKENS = 8
CLIENT_TIMEOUT_S = 2.0
#: a server that starts is given so long before it is asked
SETTLE_S = 3.0
#: what a command says when this machine, and not the server, is what can't be judged
BUSY_MESSAGES = ("client is too slow", "running or waiting")
TRIES = 4

#: what a person does to the container, beside the faults of the sandbox
MANUAL_ACTIONS: dict[str, Callable[[Any], None]] = {
    "stopped-by-hand": lambda api: api.stop("qwen35", timeout=1),
    "removed-by-hand": lambda api: api.remove_container("qwen35", force=True),
    "restarted-by-hand": lambda api: api.restart("qwen35", timeout=1),
}
#: faults that take the host's memory while one looks on: test_host_saved.py has them, each command would meet another host
MEMORY_FAULTS = ("overshoot", "unkillable", "other-program", "leak")
STATES = ("healthy", *MANUAL_ACTIONS, *(fault for fault in control.FAULTS if fault not in MEMORY_FAULTS))


@dataclass
class Observation:
    """A cell: the command's result, and what a client got right after it ("" if there was none)."""

    said: CommandResult
    client: str = ""

    @property
    def text(self) -> str:
        return self.said.out + self.said.err


class FaultySpark:
    """A deployed and checked sandbox that is broken and fixed again, state by state."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project
        self._run = project.run
        self._observe_column("health")

    @property
    def docker(self) -> Any:
        """A new connection: the sandbox drops those that nobody uses for a while."""
        return self.project.docker().api

    def observe(self, state: str, columns: Collection[str] = COLUMNS) -> dict[str, Observation]:
        """Some cells of a row. Afterwards the server is as its fix left it."""
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
        for column in (afterward for afterward in FIXED_COLUMNS if afterward in columns):
            observations[column] = self._observe_column(column)
        if state in START_FAULTS:  # what was started beside it still is as it made it, and may give tokens
            self._observe_column("restart")
        return {column: observations[column] for column in COLUMNS if column in observations}

    def _observe_column(self, column: str, before: Callable[[], None] = lambda: None) -> Observation:
        """One command, again while this machine is too busy for it; and a client, where the command promises one something.

        `before` comes before each try: a command that changed the host and then could not measure has left nothing to change.
        """
        for _ in range(TRIES):
            before()
            self._wait_for_start()
            result = self._run(*COMMANDS.get(column, (column,)), "--host", "sandbox")
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
        """Clear the record of earlier changes: flapping is no part of the table."""
        path = self.project.sandbox / "home/.local/state/sparkwright/health-remembered.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "seen": record["seen"][-1:]}))

    def _restore(self) -> None:
        """Clear the fault, and make a server serve."""
        control.set_fault(self.project.sandbox, None)
        for command in ("", "restart", "deploy"):
            if command:
                self._observe_column(command)
            if self.client() == TOKENS:
                return
        raise AssertionError("the sandbox does not come back")

    def _wait_for_start(self) -> None:
        """Wait until the server is up, or the time for that is over."""
        deadline_s = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline_s:
            rows = [row for row in self.docker.containers(all=True) if row["Names"] == ["/qwen35"]]
            if not rows or rows[0]["State"] not in ("running", "restarting") or self._is_up():
                return
            time.sleep(0.05)

    def _is_up(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=1)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def client(self) -> str:
        """Send a streaming request. Return TOKENS, SLOW or NOTHING."""
        self._wait_for_start()
        connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=CLIENT_TIMEOUT_S)
        request = {"model": "qwen3.5-35b", "prompt": "Count.", "max_tokens": REQUESTED_TOKENS, "stream": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
            came_s = [time.monotonic() for _ in _stream_tokens(connection.getresponse())]
        except (OSError, http.client.HTTPException):
            return NOTHING
        finally:
            connection.close()
        if len(came_s) < REQUESTED_TOKENS:
            return NOTHING
        between_s = statistics.median(after - before for before, after in itertools.pairwise(came_s))
        return TOKENS if between_s < MAX_TOKEN_INTERVAL_S else SLOW


def _stream_tokens(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The pieces of text of a stream, as they come."""
    for line in answer:
        if line.startswith(b"data: {"):
            piece = json.loads(line[6:])["choices"]
            if piece and piece[0]["text"]:
                yield piece[0]["text"]


# -- the table ---------------------------------------------------------------------------------------------------------


def load_table() -> dict[str, dict[str, str]]:
    """The rows of states.yml: by state, by column, "CODE what the screen says"."""
    return yaml.safe_load(TABLE.read_text())  # type: ignore[no-any-return]


def specified_columns(row: dict[str, str]) -> set[str]:
    """Return the columns of a row that are specified."""
    return {column for column in COLUMNS if row[column] != UNSPECIFIED}


def find_mismatches(row: dict[str, str], observations: dict[str, Observation]) -> list[str]:
    """Return the differences from the row, and the broken promises."""
    cells = [differ for column, seen in observations.items() for differ in _compare_cell(column, row[column], seen)]
    return [*cells, *(item for column, seen in observations.items() for item in find_broken_promises(column, seen))]


def _compare_cell(column: str, cell: str, observation: Observation) -> Iterator[str]:
    if not matches_cell(cell, observation.said.code, observation.text):
        yield f"{column}: expected {cell!r}, got {observation.said.code}: {join_whitespace(observation.text)[-600:]}"


def find_broken_promises(column: str, observation: Observation) -> Iterator[str]:
    """A green answer that no client would agree with. What says `starting`, or `up` before any token, promises nothing."""
    if (
        column not in PROMISING_COLUMNS
        or observation.said.code != 0
        or re.search(r"(?m)\bstarting\b|^sandbox +up\b", observation.said.out)
    ):
        return
    if observation.client == NOTHING or (observation.client == SLOW and column in MEASURING_COLUMNS):
        yield f"{column} ended with 0, and a client gets {observation.client}: {join_whitespace(observation.text)[-600:]}"


#: what of a screen a cell holds when it is printed: the first of these that is found
TELLING_PATTERNS = {
    "status": [r"(?m)^sandbox +(?P<said>[a-z-]+(?: progress)?) .*?(?: ago|now, no schedule)(?P<more> *[^\n]*)$"],
    "verify": [r"(?m)^\w+ +Summarize the checks +(?P<said>[^\n]+)"],
    "diagnose": [r"\A(?:\w+: +)?(?P<said>[^\n]+)"],
    "health": [r"(?m)^\w+ +Check the server's health +(?:\([^)]*\) +)?(?P<said>[^\n]+)"],
    "": [r"(?m)^failed +(?P<said>[^\n]+)", r"(?P<said>changed=\d+)"],
}
#: figures differ each time
FIGURE = re.compile(
    r"\S*\d\S*(?: (?:of|s|ms|tok/s|GiB|MB|GB|C|W|%)\b)*(?:,? \S*\d\S*(?: (?:s|ms|tok/s|GiB|MB|GB|C|W|%)\b)*)*"
)


def format_row(state: str, observations: dict[str, Observation]) -> str:
    """A row as it is observed, in the form of states.yml, with what a client got beside it."""
    lines = [f"{state}:"]
    for column, observation in observations.items():
        client = f"   # client: {observation.client}" if observation.client else ""
        cell = json.dumps(f"{observation.said.code} {extract_telling_text(column, observation)}", ensure_ascii=False)
        lines += [f"  {column}: {cell}{client}", *(f"  # {item}" for item in find_broken_promises(column, observation))]
    return "\n".join(lines)


def extract_telling_text(column: str, observation: Observation) -> str:
    """The words of a screen that tell, without its figures: a state and why, a sum, the first failure, or what changed."""
    kind = COMMANDS.get(column, (column,))[0]
    for pattern in [*TELLING_PATTERNS.get(kind, []), *TELLING_PATTERNS[""]]:
        if match := re.search(pattern, observation.text):
            message = " ".join(match.groupdict(default="").values())
            return (
                message
                if message.startswith("changed=")
                else re.sub(r"( \.\.\.)+", " ...", join_whitespace(FIGURE.sub("...", message))).strip(" .")
            )
    return join_whitespace(observation.text)[-200:]


def main() -> None:
    """Print the rows of some states, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", required=True, help="observe and print")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="only these, separated by commas")
    parser.add_argument("--whole", action="store_true", help="with all that each command prints")
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
