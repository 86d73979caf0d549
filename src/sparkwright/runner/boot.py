"""The first file of a shipped runtime: puts its own folder on the path and answers one request."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparkwright.runner.main import main

sys.exit(main())
