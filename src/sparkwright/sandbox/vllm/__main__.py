"""Run the simulated vLLM: python3 -m sparkwright.sandbox.vllm serve /models/x ... (entry point of the stand-in image)."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.command_line import PrintedOutput, resolve_command
from sparkwright.sandbox.vllm.engine import Engine

FAULT_FILE = Path("/run/sandbox-fault")
DEFAULT_VERSION = "0.32.0"


def main() -> int:
    """Print the output of a command, or run a server in the foreground. Return the exit code."""
    version = os.environ.get("VLLM_VERSION", DEFAULT_VERSION)
    outcome = resolve_command(sys.argv[1:], version)
    if isinstance(outcome, PrintedOutput):
        print(outcome.text, file=sys.stderr if outcome.code else sys.stdout)
        return outcome.code
    log = partial(print, flush=True)
    engine = Engine(
        outcome.argv,
        version=version,
        log=log,
        host_path=Path,
        listen=None,
        env=os.environ,
        api=VllmApi,
        fault=_read_fault,
    )
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    return engine.run()


def _read_fault() -> str:
    return os.environ.get("SANDBOX_FAULT", "") or (FAULT_FILE.read_text().strip() if FAULT_FILE.exists() else "")


if __name__ == "__main__":
    sys.exit(main())
