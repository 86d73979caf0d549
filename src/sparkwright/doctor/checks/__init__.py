"""The checks, one a file: its `NAME`, and `check`, a function of a Host that yields findings and changes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host

Check = Callable[[Host], Iterable[Finding]]

#: the order of the report; a file that is not named here comes last
ORDER = (
    *(
        "release",
        "driver",
        "kernel",
        "fabric",
        "docker",
        "mounts",
        "toolkit",
        "session",
        "language",
        "names",
        "memory",
        "earlyoom",
        "swap",
        "shm",
        "power",
        "heat",
        "idle",
        "disk",
    ),
    *("clock", "ports", "starts", "ollama", "platform", "become", "updates"),
)
_FILES = (*ORDER, *sorted({path.stem for path in Path(__file__).parent.glob("[!_]*.py")} - {*ORDER}))
_EACH = [importlib.import_module(f"{__package__}.{file}") for file in _FILES]
CHECKS: dict[str, Check] = {module_type.NAME: module_type.check for module_type in _EACH}
