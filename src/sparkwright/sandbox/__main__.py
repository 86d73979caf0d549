"""Run the daemon: python3 -m sparkwright.sandbox serve FOLDER (started by control.up)."""

from __future__ import annotations

import sys
from pathlib import Path

from sparkwright.sandbox.daemon import Spark

Spark(Path(sys.argv[2])).serve()
