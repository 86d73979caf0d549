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

CHECKS: dict[str, Check] = {
    "DGX OS": release.check,
    "driver": driver.check,
    "kernel": kernel.check,
    "docker": docker.check,
    "container toolkit": toolkit.check,
    "logout": session.check,
    "locale": language.check,
    "names": names.check,
    "earlyoom": earlyoom.check,
    "swap": swap.check,
    "disk": disk.check,
    "clock": clock.check,
    "port": ports.check,
    "Ollama": ollama.check,
    "image platform": platform.check,
}
