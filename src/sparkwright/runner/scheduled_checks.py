"""The program that the host's scheduler runs without a laptop: a check of each server, or the service that wakes servers.

    python -I .../sparkwright/runner/scheduled_checks.py [wake] TAG-FILE (a shipped runtime; the tag says which Python it is for)
    python -I .../sparkwright/runner/scheduled_checks.py [wake]          (an installed sparkwright)

A check exits with 0 regardless of the server's state, so that a failed systemd unit means that the check itself failed. The
service exits immediately if it is already running.
"""

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path


def main(words: list[str]) -> int:
    """Check every server once, or run the service until SIGTERM.

    Returns:
        75 if this runtime is damaged or was built for another Python: `sparkwright health.install` ships the right one.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["LC_ALL"] = "C"
    try:
        from sparkwright.host.runs import runtime_folder

        wakes = words[:1] == ["wake"]
        runtime = "".join(str(Path(word).parent) for word in words[wakes:])
        if runtime and (reason := runtime_folder.unusable(runtime)):
            print(f"cannot use the runtime {runtime}: {reason}: run `sparkwright health.install` again", flush=True)
            return 75
        return _wake() if wakes else _check()
    except (ImportError, SyntaxError) as error:
        print(f"the runtime is damaged: {error}: run `sparkwright health.install` again", flush=True)
        return 75


def _check() -> int:
    from sparkwright.errors import Refused, SparkwrightError
    from sparkwright.health import model_hashes
    from sparkwright.health.check import DOCKER_S
    from sparkwright.health.settings import Settings
    from sparkwright.host.machine import Machine
    from sparkwright.host.runs.context import Engine, RunContext
    from sparkwright.host.state import StateFolder
    from sparkwright.protocol.events import Event
    from sparkwright.protocol.plan import new_run_id
    from sparkwright.runner.health_check import composed, sentence

    machine = Machine.here()
    try:
        StateFolder.of(machine.home).refuse_newer()
    except Refused as refused:
        print(f"{refused.message} Run `sparkwright health.install` again", flush=True)
        return 75
    failed, checked = 0, []
    for state in StateFolder.of(machine.home).servers():
        of = f"{state.server}: " if state.server else ""
        engine = Engine(machine, timeout_s=DOCKER_S)

        def emit(event: Event, of: str = of) -> None:
            print(f"{of}{event.get('text', '')}", flush=True)

        context = RunContext(machine, state, new_run_id("check"), emit, engine=engine)
        try:
            record = composed(context, Settings.of(state), scheduled=True).run()
            checked.append((of, context, state))
        except SparkwrightError as error:
            print(f"{of}{error}", flush=True)
            failed = 1
            continue
        print(f"{of}{sentence(record)}", flush=True)
        if record.healed:
            print(f"{of}{record.healed}", flush=True)
    for of, context, state in checked:  # last, because it permanently lowers the priority of this process
        if hashed := model_hashes.go_on(context, Settings.of(state)):
            print(f"{of}{hashed}", flush=True)
    return failed


def _wake() -> int:
    from sparkwright.errors import SparkwrightError
    from sparkwright.health.check import DOCKER_S
    from sparkwright.health.wake import IDLE_S, POLL_S, Waker
    from sparkwright.host.machine import Machine
    from sparkwright.host.records import turns
    from sparkwright.host.runs.context import Engine, RunContext
    from sparkwright.host.state import StateFolder
    from sparkwright.protocol.events import Event
    from sparkwright.protocol.plan import new_run_id
    from sparkwright.runner.health_check import run_plan
    from sparkwright.trust import private

    def emit(event: Event) -> None:
        print(event.get("text", ""), flush=True)

    machine, ended = Machine.here(), threading.Event()
    state = StateFolder.of(machine.home)
    state.folder()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with open(state.path / turns.LOCK, "ab", opener=private.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        waker = Waker(
            RunContext(machine, state, new_run_id("wake"), emit, engine=Engine(machine, timeout_s=DOCKER_S)), run_plan
        )
        pause_s = 0.0
        while not ended.wait(pause_s):
            try:
                state.refuse_newer()  # a laptop with a newer version may have written to it in the meantime
                pause_s = POLL_S if waker.poll() else IDLE_S
            except (SparkwrightError, OSError) as error:
                print(error, flush=True)
                pause_s = IDLE_S
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
