"""The entry point of a shipped runtime, which puts its own folder on the path and answers one request.

The modules for the request are imported before it is read, while the laptop is still planning ("light" for `status`, "plan" for a
plan, "engine" for one that uses Docker). The main thread imports them, because the runner forks: a child forked while another
thread imports would inherit import locks that are never released.

`ready` is sent before the request is read. If the process exits without it, the laptop ships the runtime again. The laptop sends
its request only after `ready`, so that a login shell that starts another program never receives it.
"""

import gc
import importlib
import os
import sys
from pathlib import Path

gc.set_threshold(100_000)  # imports create no garbage
#: exit code of a runtime that has started, whatever the outcome; not 0, which Python returns for an empty file
STARTED_EXIT_CODE = 76
#: modules that a deploy without changes uses
DEPLOY_MODULES = (
    *("system.facts", "proof.preflight", "server.container", "image.docker_image"),
    *("model.hf_model", "proof.liveness", "server.records"),
)
RUN_MODULES = ("sparkwright.runner.run", "sparkwright.runner.play")
PRELOADED_MODULES = {
    "light": ("sparkwright.runner.status",),
    "plan": RUN_MODULES,
    "engine": (*RUN_MODULES, *(f"sparkwright.modules.{name}" for name in DEPLOY_MODULES)),
}

folder = str(Path(sys.argv[1]).resolve().parent)
sys.path.insert(0, f"{folder}/lib")
from sparkwright.host.runs import runtime_folder

if reason := runtime_folder.hold_usable(folder):
    sys.exit(f"cannot use the runtime {folder}: {reason}")

from sparkwright.runner.main import main

for name in PRELOADED_MODULES[sys.argv[2]]:
    importlib.import_module(name)
sys.stdout.write('\n{"event": "ready"}\n')  # on its own line, whatever the login shell has printed before
sys.stdout.flush()
try:
    if sys.stdin.buffer.peek(1):  # type: ignore[union-attr]
        main()
    sys.stdout.flush()
except BaseException:
    import traceback

    traceback.print_exc()
    os._exit(STARTED_EXIT_CODE + 1)
os._exit(STARTED_EXIT_CODE)  # the answer is sent, and an orderly shutdown would take a quarter of the total time
