"""What the host's own clock starts: one check, with no laptop.

    python -I .../sparkwright/health/scheduled.py TAG-FILE        (a shipped runtime: the tag says what it was made for)
    python -I .../sparkwright/health/scheduled.py                 (sparkwright as it is installed here)

Ends with 0 when it checked, whatever the state is: systemd's own failure means that the check itself broke.
"""

import os
import platform
import sys
import time
from pathlib import Path


def main(words: list[str]) -> int:
    """Check once. 75: this runtime was made for another Python or processor, `invoke health.install` ships the right one."""
    made_for = f"{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}"
    if words and Path(words[0]).read_text().strip() != made_for:
        print(f"this runtime is not for {made_for}: `invoke health.install` again", flush=True)
        return 75
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["LC_ALL"] = "C"

    from sparkwright.errors import SparkwrightError
    from sparkwright.health.by_hand import sentence
    from sparkwright.health.check import DOCKER_S, Check
    from sparkwright.health.settings import Settings
    from sparkwright.host.machine import Machine
    from sparkwright.host.state import StateFolder
    from sparkwright.runner.context import Engine, RunContext

    machine = Machine.here()
    state = StateFolder.of(machine.home)
    run_id = time.strftime("%Y%m%dT%H%M%S") + "-check"
    engine = Engine(machine, timeout_s=DOCKER_S)
    context = RunContext(machine, state, run_id, lambda one: print(one.get("text", ""), flush=True), engine=engine)
    try:
        record = Check(context, Settings.of(state), scheduled=True).run()
    except SparkwrightError as error:
        print(error, flush=True)
        return 1
    print(sentence(record), flush=True)
    if record.healed:
        print(record.healed, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
