"""Rule about the memory of a GB10 that applies to every engine: a server must leave the host its memory reserve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines import budget
from sparkwright.engines.advice import Explained, Platform
from sparkwright.engines.budget import Budget, Row, Start
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.memory import HOST_SIDE_BYTES, Memory
from sparkwright.errors import SparkwrightError
from sparkwright.trust.container_words import size_bytes
from sparkwright.units import GIB, gib

#: MemTotal of a GB10 of 2026; 119.7 GiB on one of 2025
GB10_BYTES = int(121.7 * GIB)
#: DGX OS, its desktop and the driver, before anything is served
SYSTEM = Row("the system", 6 * GIB, "DGX OS, its desktop and the driver", "host", assumed=True)
#: proposed size of /dev/shm: a server on one GPU exchanges little there
SHM, SHM_BYTES = "1gb", GIB
SOURCE = "reports of GB10 users"


@dataclass(frozen=True)
class Case:
    """The input of the rule: an engine's memory model, and the container's options by their names in a recipe."""

    memory: Memory
    container: Mapping[str, Any] = field(default_factory=dict)
    platform: Platform = "gb10"


RULES: Rules[Case, Case] = Rules()
rule = RULES.rule


@rule(
    "memory-budget",
    sources=(
        "vllm #46307, #56824: starts at 0.70 took 112 and 119 of 121.7 GiB, and the host hung",
        "llamastash PR 81: 5.4 to 6.7 GiB on the host's side of the engine, on top of its share",
        "sgl-project/sglang #34872: 0.95 on a Spark; 0.75 swapped while graphs were captured, 0.70 held",
        "hasso5703/dgx-spark-qwen38 #2: 0.95 froze hosts while graphs were captured",
        "tonyd2wild #31: /dev/shm is the same memory; 10 GB did for a worker",
    ),
    example=Case(
        Memory(share=0.9, flag="gpu-memory-utilization", value=0.9, host_bytes=HOST_SIDE_BYTES), {"shm_size": "64gb"}
    ),
)
def memory_budget(case: Case) -> Iterator[Finding]:
    """A server must leave the host its memory reserve.
    On a GB10 CPU and GPU share 119.7 to 121.7 GiB. An engine takes its share of all of it, and its processes, CUDA's context and
    the driver take 5 to 7 GiB more on the host's side; what is written to /dev/shm is the same memory, up to `shm_size`. What is
    missing then is missing for the system, up to the loss of sshd: no limit of Docker sees what CUDA takes.
    """
    if case.platform != "gb10" or not case.memory.known:
        return
    shm = _shm_bytes(case.container)
    found = on_gb10(case.memory, shm)
    over = found.need_bytes + shm - found.total_bytes
    if over <= 0:
        return
    parts = f"{gib(found.of('server'))} GiB for the engine on both sides, {gib(SYSTEM.size_bytes)} of the system, {RESERVE_GIB} reserve"
    parts += f", {gib(shm)} in /dev/shm" if shm else ""
    about = f"{case.memory.flag} {case.memory.value:g}" if case.memory.flag else "what it takes"
    sentence = f"{about} leaves too little of the shared memory for the host: {parts} are {gib(over)} GiB more than a GB10 has."
    flag = "container.shm_size" if over <= shm - SHM_BYTES else case.memory.flag
    yield Finding("warning", sentence, tuple(_ways(case.memory, found, over, shm)), SOURCE, flag)


def on_gb10(memory: Memory, shm_bytes: int = 0) -> Budget:
    """Return the budget of a server alone on a GB10 without any measurements; its /dev/shm is a limit."""
    start = Start(shm_bytes=shm_bytes, shm_source="shm_size")
    return budget.of(memory, GB10_BYTES, start, reserve_bytes=RESERVE_GIB * GIB, own=SYSTEM)


def _shm_bytes(container: Mapping[str, Any]) -> int:
    """Return the size that `shm_size` allows; 0 if it is not set, or invalid, which is refused elsewhere."""
    try:
        return size_bytes(str(container.get("shm_size") or "0"))
    except SparkwrightError:
        return 0


def _ways(memory: Memory, found: Budget, over: int, shm: int) -> Iterator[Way]:
    """Yield what to set: a smaller /dev/shm if that suffices, else the largest share or context that fits together with one."""
    if over <= shm - SHM_BYTES:
        yield Way(f"set shm_size to {SHM}")
        return
    smaller = min(shm, SHM_BYTES)
    room = memory.engine_bytes(found.total_bytes) - (over - shm + smaller)
    largest = memory.largest(found.total_bytes, room)
    less = f" and shm_size to {SHM}" if shm > smaller else ""
    if largest is None:
        yield Way("serve a smaller model, or a shorter context")
        return
    flag, value = largest
    yield Way(f"set {flag} to {value:g}{less}", {flag: value if memory.share else int(value)})


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    rule = RULES.get(name)
    if rule is None:
        return None
    case = rule.example
    found = next(iter(rule.findings(case)))
    return Explained("", rule.name, rule.title, rule.reason, rule.sources, {}, "", None, found, case.container)
