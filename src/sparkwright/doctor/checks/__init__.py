"""The checks, one a file: its `NAME`, and `check`, a function of a Host that yields findings and changes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

from sparkwright.doctor.finding import Finding
from sparkwright.doctor.host import Host

Check = Callable[[Host], Iterable[Finding]]

#: the order of the report; a file that is not named here comes last
ORDER = (
    *("release", "driver", "kernel", "docker", "toolkit", "session", "language", "names", "earlyoom", "swap", "disk"),
    *("clock", "ports", "ollama", "platform"),
)


def _found() -> dict[str, Check]:
    files = {path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__"}
    loaded = [importlib.import_module(f"{__package__}.{file}") for file in (*ORDER, *sorted(files - {*ORDER}))]
    return {module.NAME: module.check for module in loaded}


CHECKS = _found()
