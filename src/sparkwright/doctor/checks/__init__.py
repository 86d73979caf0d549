"""The checks, in the order of the report. Each is a function of a Host that yields findings and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkwright.doctor.checks import (
    clock,
    disk,
    docker,
    driver,
    earlyoom,
    kernel,
    language,
    names,
    ollama,
    platform,
    ports,
    release,
    session,
    swap,
    toolkit,
)
from sparkwright.doctor.finding import Finding
from sparkwright.doctor.host import Host

Check = Callable[[Host], Iterable[Finding]]

_EACH = (
    *(release, driver, kernel, docker, toolkit, session, language, names),
    *(earlyoom, swap, disk, clock, ports, ollama, platform),
)
CHECKS: dict[str, Check] = {one.NAME: one.check for one in _EACH}
