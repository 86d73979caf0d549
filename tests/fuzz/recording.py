"""Real answers of hosts to every command that queries hosts, recorded from two sandboxes and replayed without them.

python -m tests.fuzz.recording    records again (some minutes), after a change of the answers

A recording holds the events of each request of a command, by host. A replay uses the laptop's own code down to the
link; its bytes are read like those of a real link.
"""

import contextlib
import gzip
import importlib
import json
import os
import pkgutil
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from sparkwright import app, console
from sparkwright.protocol.event_reader import EventReader
from sparkwright.protocol.events import Event
from sparkwright.remote.local import LocalLink

FILE = Path(__file__).parent.parent / "data/host-answers.json.gz"
HONEST, HOSTILE = "side1", "side2"
BOTH = ("--host", f"{HONEST},{HOSTILE}")
ONE = ("--host", HOSTILE)
TIMEOUT_S = 90.0

#: every command that queries a host, and its arguments; a name after a colon distinguishes several entries of a command
COMMANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("plan", "verify", "diagnose", "client", "attach", "runs", "history", "status", "doctor"), BOTH),
    **dict.fromkeys(("health.check", "hosts.check", "cluster.inspect", "cluster.check", "models.list"), BOTH),
    **dict.fromkeys(("models.verify", "ollama.ps", "ollama.unload", "incident", "logs", "recipe.list"), BOTH),
    **dict.fromkeys(("caches.list", "deploy", "restart", "provision", "health.install", "health.uninstall"), BOTH),
    "runs:all": (*BOTH, "--all"),
    **dict.fromkeys(("models.prune", "images.prune", "caches.prune", "host.clean"), (*BOTH, "--yes")),
    "logs:state": (*BOTH, "--state"),
    "doctor:fix": (*BOTH, "--fix", "--yes"),
    "report": (*BOTH, "--to", "page.html"),
    "recommend": ONE,
    "lock": (*BOTH, "--update", "qwen3.5-35b", "--yes"),
    "lock:check": (*BOTH, "--check"),
    "play": ("verify", *BOTH),
    "rollback": (*BOTH, "--check"),
    "switch": (*BOTH, "--to", "qwen3.5-35b", "--check"),
    "stop": BOTH,
    "unlock": (*ONE, "--stop"),
    "models.copy": ("--from", HONEST, "--to", HOSTILE),
    "monitoring.install": (*BOTH, "--to", "monitoring"),
    "recipe.import": ("--from-host", HOSTILE, "--container", "qwen35", "--name", "imported", "--yes"),
    "gateway.status": ("--host", "box"),
    "gateway.deploy": ("--host", "box", "--check"),
    "gateway.rollback": ("--host", "box", "--check"),
    "bench.smoke": (*ONE, "--prompt-tokens", "64", "--output-tokens", "8"),
    "bench.serve": (*ONE, "--requests", "4", "--prompt-tokens", "64", "--output-tokens", "8"),
}
#: commands with an option --json
AS_JSON = frozenset(
    (
        *("plan", "verify", "diagnose", "client", "runs", "history", "status", "doctor", "health.check", "hosts.check"),
        *("cluster.inspect", "models.list", "models.verify", "ollama.ps", "logs", "recommend", "caches.list", "deploy"),
    )
)


@dataclass
class Request:
    """A request to a host, its key (see `request_key`), and the events of the answer."""

    command: str
    host: str
    key: str
    events: list[Event]


def request_key(header: Mapping[str, Any]) -> str:
    """Return a name for a request: its verb and module, or the play and the first module of a run."""
    plan = header.get("plan")
    if header["verb"] != "run" or not isinstance(plan, dict):
        return " ".join(str(header[name]) for name in ("verb", "module") if name in header)
    modules = re.findall(r'"module": "([a-z_]+)"', json.dumps(plan.get("steps")))
    return f"run {plan['play']} {'check' if plan.get('check') else 'act'} {' '.join(modules[:1])}"


def recorder(command: str, file: Path) -> Callable[[], None]:
    """Return a function that changes the link to record the answers of hosts."""

    def install() -> None:
        real = LocalLink.request

        def request(self: LocalLink, header: dict[str, Any], secrets: Any) -> Iterator[Event]:
            events: list[Event] = []
            row = {"command": command, "host": self._host.name, "key": request_key(header), "events": events}
            try:
                for event in real(self, header, secrets):
                    events.append(event)
                    yield event
            finally:  # the reader may stop before the end
                with file.open("a") as out:  # each line is written at once, because there are several threads
                    out.write(json.dumps(row) + "\n")

        LocalLink.request = request  # type: ignore[method-assign]

    return install


def player(command: str, rows: list[Request], mutate: Callable[[str, list[Event]], bytes]) -> Callable[[], None]:
    """Return a function that changes the link to replay answers. mutate: turns a host's recorded events into bytes."""
    ordered = [row for row in rows if row.command == command] + [row for row in rows if row.command != command]
    used: set[int] = set()

    def install() -> None:
        def request(self: LocalLink, header: dict[str, Any], secrets: Any) -> Iterator[Event]:
            host, key = self._host.name, request_key(header)
            matching = [n for n, row in enumerate(ordered) if row.key == key and row.host == host]
            matching = matching or [n for n, row in enumerate(ordered) if row.key == key]
            play = (
                key.rpartition(" check ")[0] or key.rpartition(" act ")[0]
            )  # a nonsense check may be followed by a run
            matching = matching or [n for n, row in enumerate(ordered) if play and row.key.startswith(play)]
            assert matching, f"no answer to {key!r} was recorded: python -m tests.fuzz.recording"
            index = next((n for n in matching if n not in used), matching[0])
            used.add(index)
            reader = EventReader()
            yield from reader.feed(mutate(host, ordered[index].events))
            yield from reader.end()

        LocalLink.request = request  # type: ignore[method-assign]

    return install


def encode_events(events: list[Event]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@dataclass
class CommandResult:
    """The result of a command; code is None if it was killed after TIMEOUT_S."""

    code: int | None
    out: str


def run_command(words: list[str], folder: Path, env: Mapping[str, str], install: Callable[[], None]) -> CommandResult:
    """Run a command in a child of this process, with both outputs combined."""
    out = folder / ".output"
    child = os.fork()
    if not child:
        _run_in_child(words, folder, env, install, out)
    descriptor = os.pidfd_open(child)
    in_time = bool(select.select([descriptor], [], [], TIMEOUT_S)[0])
    os.close(descriptor)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return CommandResult(code if in_time else None, out.read_text(errors="replace"))


def _run_in_child(
    words: list[str], folder: Path, env: Mapping[str, str], install: Callable[[], None], out: Path
) -> NoReturn:
    code = 70
    try:
        output = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))
        os.chdir(folder)
        os.environ.update(env)
        sys.argv = ["sparkwright", *words]
        install()
        from sparkwright.cli import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def import_commands() -> None:
    """Import the modules of all commands, once for all children of this process."""
    for package in (app, console):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def command_words(name: str, *, json: bool = False) -> list[str]:
    """Return the command line of an entry of COMMANDS."""
    command = name.partition(":")[0]
    return [command, *COMMANDS[name], *(["--json"] if json else [])]


def load_recording() -> tuple[list[Request], dict[str, str]]:
    """Return the recorded requests, and the files of their project."""
    data = json.loads(gzip.decompress(FILE.read_bytes()))
    return [Request(**row) for row in data["requests"]], data["files"]


def write_files(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def record() -> None:
    """Run every command against two sandboxes and store their answers."""
    from sparkwright.sandbox import control
    from tests.e2e.two_hosts import HOSTS, TwoHostProject

    with patch.dict(os.environ, {"SPARKWRIGHT_SANDBOX_SPEED": "instant"}), tempfile.TemporaryDirectory() as name:
        desk, rows = TwoHostProject(Path(name)), Path(name) / "rows.jsonl"
        try:
            print("deploying two sandboxes")
            # the hosts' state gets a history: a deploy, a check, an incident
            result = desk.run("deploy", "--host", "box", "--serial", "1", "--json", timeout_s=600)
            assert result.code in (0, 4), result.out[-3000:] + result.err
            result = desk.run("gateway.deploy", "--host", "box", "--json", timeout_s=300)
            print("gateway.deploy", result.code, result.out[-1500:] if result.code else "")
            files = _read_files(desk.root)
            for command in COMMANDS:
                ended = run_command(command_words(command), desk.root, desk.environment(), recorder(command, rows))
                print(command, ended.code, ended.out[-300:].replace("\n", " | ") if ended.code else "")
            requests = [json.loads(line) for line in rows.read_text().splitlines()]
        finally:
            for host in HOSTS:
                control.down(desk.sandbox / "hosts" / host)
    for request in requests:
        request["events"] = [_truncate_texts(event) for event in request["events"]]
    FILE.write_bytes(gzip.compress(json.dumps({"requests": requests, "files": files}).encode(), mtime=0))
    commands = {row["command"] for row in requests}
    print(f"{len(requests)} requests of {len(commands)} commands: {FILE.stat().st_size} bytes")


def _read_files(root: Path) -> dict[str, str]:
    """Return the files of a project, including the locks of its sandbox."""
    own = [path for path in root.rglob("*") if path.is_file() and ".sandbox" not in path.parts]
    wanted = [path for path in own if path.suffix in (".yml", ".j2", ".lock", ".py", ".json")]
    wanted += (root / ".sandbox").glob("**/spark.lock")
    return {str(path.relative_to(root)): path.read_text() for path in wanted}


def _truncate_texts(event: Event) -> Event:
    """Return the event with long texts truncated."""
    return {name: value[:4000] if isinstance(value, str) else value for name, value in event.items()}


if __name__ == "__main__":
    record()
