"""Stores runs as test data, without paths of this machine.

    PYTHONPATH=src python -m tests.real_engine.keep hybrid-defaults mamba2-chunked-off ...

From .engine/VERSION/runs/CASE to tests/data/vllm-VERSION/CASE: server.log, command.txt, result.json.
"""

import re
import sys
from pathlib import Path

from tests.real_engine.engine import ENVIRONMENT, RUNS, VERSION, Engine, ensure_installed

DATA = Path(__file__).parents[1] / "data" / f"vllm-{VERSION}"
FILES = ("server.log", "command.txt", "result.json")
MOST_BYTES = 60_000
#: addresses and paths of this machine
ADDRESS = re.compile(r"(mq_connect_ip=)[\d.]+")
SCRATCH = re.compile(r"/(?:var/)*tmp/[\w./-]+")
STDLIB = re.compile(r"(?<![\w.-])/(?!opt/engine/|models/)[^\s\"']*?/lib/(python3\.\d+)/")
ROUTES = re.compile(r"^.*Route: /(?!health|v1/models|metrics|v1/chat/completions,).*\n", re.M)


def keep_run(case: str, engine: Engine) -> None:
    """Copy a run. Exits if it is stored already, if a file is too long, or if it has a path of this machine."""
    if (DATA / case).exists():
        sys.exit(f"{DATA / case} exists already.")
    texts = {}
    for name in FILES:
        text = (RUNS / case / name).read_text(errors="replace")
        if name == "command.txt":
            text = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items()) + f" {text}"
        clean = neutralize(text, engine)
        if len(clean.encode()) > MOST_BYTES:
            sys.exit(f"{case}/{name} has {len(clean)} characters, more than {MOST_BYTES}.")
        folder = re.search(r".{0,40}/(tmp|work|root|home)/.{0,40}", clean)
        if folder:
            sys.exit(f"{case}/{name} still has a path of this machine: {folder[0]}")
        texts[name] = clean
    (DATA / case).mkdir(parents=True)
    for name, clean in texts.items():
        (DATA / case / name).write_text(clean)


def neutralize(text: str, engine: Engine) -> str:
    """Replace the paths of the models, the engine and its Python, and remove most of the listed routes."""
    for path in {str(engine.models), str(engine.models.resolve())}:
        text = text.replace(path, "/models")
    for path in {str(engine.venv), str(engine.venv.resolve())}:
        text = text.replace(path, "/opt/engine")
    text = STDLIB.sub(r"/usr/lib/\1/", text)
    text = ADDRESS.sub(r"\g<1>192.0.2.2", text)
    return ROUTES.sub("", SCRATCH.sub("/scratch", text))


if __name__ == "__main__":
    for item in sys.argv[1:]:
        keep_run(item, ensure_installed())
