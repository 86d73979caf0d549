"""The first file of a shipped runtime: puts its own folder on the path and answers one request.

What the request needs is imported before it is read, while the laptop still plans ("light": a short question, "plan": a plan,
"engine": one that speaks to Docker); in this thread, for a runner forks and a fork beside an importing thread inherits its
locks for ever.

Ends with 75 when the runtime was made for another Python or processor than this host has now.
"""

import gc
import importlib
import os
import sys
from pathlib import Path

gc.set_threshold(100_000)  # what an import makes is no garbage
#: of a deploy that finds nothing to do
MODULES = ("facts", "preflight", "container", "docker_image", "hf_model", "lint", "template", "verify_health")
AHEAD = {
    "plan": ("sparkwright.runner.play",),
    "engine": ("docker", "sparkwright.runner.play", *(f"sparkwright.modules.{name}" for name in MODULES)),
}

tag = Path(sys.argv[1]).read_text().strip()
if tag != f"{sys.version_info[0]}.{sys.version_info[1]}-{os.uname().machine}":
    sys.exit(75)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if sys.argv[2] == "light":
    from sparkwright.runner.light import main
else:
    from sparkwright.runner.main import main

    for name in AHEAD[sys.argv[2]]:
        importlib.import_module(name)
if not sys.stdin.buffer.peek(1):  # type: ignore[union-attr]
    os._exit(0)  # nothing is asked after all
code = main()
sys.stdout.flush()
os._exit(code)  # the answer is out; taking the interpreter apart would cost the host a quarter of it
