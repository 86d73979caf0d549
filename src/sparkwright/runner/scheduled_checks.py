"""The program that the host's scheduler runs, without a laptop: a check of each server, or the service that wakes servers.

    python -I .../sparkwright/runner/scheduled_checks.py [wake] TAG-FILE (a shipped runtime; the tag file names its Python)
    python -I .../sparkwright/runner/scheduled_checks.py [wake]          (an installed sparkwright)

A check exits with 0 whatever the server's state, so that a failed systemd unit means that the check itself failed. A second wake
service exits immediately.
"""

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Check every server once, or run the service until SIGTERM.

    Returns:
        75 if this runtime is damaged or was built for another Python: `sparkwright health.install` ships the right one.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["LC_ALL"] = "C"
    try:
        from sparkwright.host.runs import runtime_folder

        is_wake_service = arguments[:1] == ["wake"]
        runtime = "".join(str(Path(word).parent) for word in arguments[is_wake_service:])
        if runtime and (reason := runtime_folder.hold_usable(runtime)):
            print(f"cannot use the runtime {runtime}: {reason}: run `sparkwright health.install` again", flush=True)
            return 75
        return _run_wake_service() if is_wake_service else _check_servers()
    except (ImportError, SyntaxError) as error:
        print(f"the runtime is damaged: {error}: run `sparkwright health.install` again", flush=True)
        return 75


def _check_servers() -> int:
    from sparkwright.errors import Refused, SparkwrightError
    from sparkwright.health import model_hashes
    from sparkwright.health.check import DOCKER_TIMEOUT_S
    from sparkwright.health.settings import Settings
    from sparkwright.host.machine import Machine
    from sparkwright.host.runs.context import DockerEngine, RunContext
    from sparkwright.host.state import StateFolder
    from sparkwright.protocol.events import Event
    from sparkwright.protocol.plan import new_run_id
    from sparkwright.runner.health_check import build_check, describe_record

    machine = Machine.from_environment()
    try:
        StateFolder.in_home(machine.home).refuse_newer_format()
    except Refused as refused:
        print(f"{refused.message} Run `sparkwright health.install` again", flush=True)
        return 75
    exit_code, checked_servers = 0, []
    for state in StateFolder.in_home(machine.home).servers():
        prefix = f"{state.server}: " if state.server else ""
        engine = DockerEngine(machine, timeout_s=DOCKER_TIMEOUT_S)

        def emit(event: Event, prefix: str = prefix) -> None:
            print(f"{prefix}{event.get('text', '')}", flush=True)

        context = RunContext(machine, state, new_run_id("check"), emit, engine=engine)
        try:
            record = build_check(context, Settings.load(state), scheduled=True).run()
            checked_servers.append((prefix, context, state))
        except SparkwrightError as error:
            print(f"{prefix}{error}", flush=True)
            exit_code = 1
            continue
        print(f"{prefix}{describe_record(record)}", flush=True)
        if record.healed:
            print(f"{prefix}{record.healed}", flush=True)
    for (
        prefix,
        context,
        state,
    ) in checked_servers:  # last, because hashing permanently lowers the priority of this process
        if message := model_hashes.hash_more_files(context, Settings.load(state)):
            print(f"{prefix}{message}", flush=True)
    return exit_code


def _run_wake_service() -> int:
    from sparkwright.errors import SparkwrightError
    from sparkwright.health.check import DOCKER_TIMEOUT_S
    from sparkwright.health.wake import IDLE_INTERVAL_S, POLL_INTERVAL_S, Waker
    from sparkwright.host.machine import Machine
    from sparkwright.host.records import turns
    from sparkwright.host.runs.context import DockerEngine, RunContext
    from sparkwright.host.state import StateFolder
    from sparkwright.protocol.events import Event
    from sparkwright.protocol.plan import new_run_id
    from sparkwright.runner.health_check import run_plan
    from sparkwright.trust import private

    def emit(event: Event) -> None:
        print(event.get("text", ""), flush=True)

    machine, stop_event = Machine.from_environment(), threading.Event()
    state = StateFolder.in_home(machine.home)
    state.folder()
    signal.signal(signal.SIGTERM, lambda *_: stop_event.set())
    with open(state.path / turns.LOCK_FILE, "ab", opener=private.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        engine = DockerEngine(machine, timeout_s=DOCKER_TIMEOUT_S)
        waker = Waker(RunContext(machine, state, new_run_id("wake"), emit, engine=engine), run_plan)
        pause_s = 0.0
        while not stop_event.wait(pause_s):
            try:
                state.refuse_newer_format()  # a newer sparkwright may have written the state in the meantime
                pause_s = POLL_INTERVAL_S if waker.poll() else IDLE_INTERVAL_S
            except (SparkwrightError, OSError) as error:
                print(error, flush=True)
                pause_s = IDLE_INTERVAL_S
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
