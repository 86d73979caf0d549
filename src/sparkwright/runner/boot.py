"""The first file of a shipped runtime: puts its own folder on the path and answers one request.

Ends with 75 when the runtime was made for another Python or processor than this host has now.
"""

import platform
import sys
from pathlib import Path

tag = Path(sys.argv[1]).read_text().strip()
if tag != f"{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}":
    sys.exit(75)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparkwright.runner.main import main

sys.exit(main())
