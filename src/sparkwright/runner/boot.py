"""The first file of a shipped runtime: puts its own folder on the path and answers one request.

The imports for the request are done before it is read, while the laptop still plans ("light": `status`, "plan": a plan,
"engine": one that uses Docker); in this thread, because a runner forks, and a fork while another thread imports would inherit
its locks forever.

It sends `ready` before it reads: a process that exits without that did not start, and the laptop ships the runtime again. Only
then does the laptop send its request, so a login shell that starts something else instead never sees it.
"""

import gc
import importlib
import os
import sys
from pathlib import Path

gc.set_threshold(100_000)  # objects of imports are no garbage
#: the exit code of a runtime that did start, whatever followed. An empty file exits with 0
GOOD_START = 76
#: the modules of a deploy without changes
MODULES = (
    *("system.facts", "proof.preflight", "server.container", "image.docker_image"),
    *("model.hf_model", "proof.liveness", "server.records"),
)
RUN = ("sparkwright.runner.run", "sparkwright.runner.play")
AHEAD = {
    "light": ("sparkwright.runner.status",),
    "plan": RUN,
    "engine": (*RUN, *(f"sparkwright.modules.{name}" for name in MODULES)),
}

folder = str(Path(sys.argv[1]).resolve().parent)
sys.path.insert(0, f"{folder}/lib")
from sparkwright.host.runs import runtime_folder

if reason := runtime_folder.unusable(folder):
    sys.exit(f"cannot use the runtime {folder}: {reason}")

from sparkwright.runner.main import main

for name in AHEAD[sys.argv[2]]:
    importlib.import_module(name)
sys.stdout.write('\n{"event": "ready"}\n')  # a line of its own, whatever the login shell printed before
sys.stdout.flush()
try:
    if sys.stdin.buffer.peek(1):  # type: ignore[union-attr]
        main()
    sys.stdout.flush()
except BaseException:
    import traceback

    traceback.print_exc()
    os._exit(GOOD_START + 1)
os._exit(GOOD_START)  # the answer is sent; the shutdown of the interpreter would take a quarter of its time
