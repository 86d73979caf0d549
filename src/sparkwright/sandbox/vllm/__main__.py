"""python3 -m sparkwright.sandbox.vllm serve --model /models/x ...      (the stand-in image's entry point)"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sparkwright.sandbox.vllm.engine import Engine

FAULT_FILE = Path("/run/sandbox-fault")


def main() -> int:
    """Run one engine in the foreground."""
    words = [word for word in sys.argv[1:] if word != "serve"]
    version = os.environ.get("VLLM_VERSION", "0.32.0")
    if words in (["--version"], ["-v"]):
        print(version)
        return 0
    engine = Engine(
        words,
        version=version,
        log=lambda line: print(line, flush=True),
        folder_of=Path,
        listen=None,
        fault=lambda: (
            os.environ.get("SANDBOX_FAULT", "") or (FAULT_FILE.read_text().strip() if FAULT_FILE.exists() else "")
        ),
    )
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    return engine.run()


if __name__ == "__main__":
    sys.exit(main())
