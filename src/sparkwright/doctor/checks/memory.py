"""Memory budget: does the recipe's server fit this host beside everything that runs now; and the services that keep to it."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.engines import budget
from sparkwright.engines.budget import Budget
from sparkwright.errors import SparkwrightError
from sparkwright.host.memory import host_budget, service_guard
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.records import good_states, restart_plans, wakes
from sparkwright.units import GIB, gib

NAME = "memory budget"
GUARD, WAKE = "memory guard", "wake on request"


def check(host: Host) -> Iterator[Finding]:
    """Yield the memory that the recipe's server would leave or lacks, and the state of the host's own services."""
    yield from _budget(host)
    yield from _wake(host)
    if good_states.last(host.context.state) and not host.context.machine.sandbox:
        yield _guard(host)


def _guard(host: Host) -> Finding:
    """Check the guard of the service: nothing else stops a server that grows before the host is lost."""
    source, state = known.BUDGET.source, host.context.state
    if service_guard.running(state):
        return Finding(GUARD, "ok", "it runs", source=source)
    evidence = "no guard of the memory runs: a server that grows while it serves takes the host down with it"
    return Finding(GUARD, "warning", evidence, f"invoke health.install --host {host.wanted.name or 'HOST'}", source)


def _wake(host: Host) -> Iterator[Finding]:
    """Yield the state of the wake service; nothing if no request may wake a verified server of this host."""
    state = host.context.state
    waking = [server.server for server in state.servers() if restart_plans.wake(server).get("on_request")]
    if not waking:
        return
    names = " and ".join(waking)
    if wakes.running(state):
        yield Finding(WAKE, "ok", f"a request wakes {names}")
        return
    evidence = f"the service does not run that switches to {names} when a request asks for it"
    yield Finding(WAKE, "warning", evidence, f"invoke health.install --host {host.wanted.name or 'HOST'}")


def _budget(host: Host) -> Iterator[Finding]:
    source = known.BUDGET.source
    if not host.wanted.engine_memory:
        yield Finding(NAME, "ok", "no recipe", source=source)
        return
    found = of_host(host)
    if found is None:
        yield Finding(NAME, "unknown", "/proc/meminfo is not readable, or Docker does not answer", source=source)
        return
    engine = found.of("server")
    if not engine:
        yield Finding(NAME, "unknown", f"what {host.wanted.recipe} takes is not known", source=source)
        return
    sides = f"{host.wanted.recipe} takes {gib(engine)} GiB on both sides"
    if found.fits:
        yield Finding(
            NAME, "ok", f"{sides}; {gib(found.left_bytes)} of {gib(found.total_bytes)} GiB left", source=source
        )
        return
    lower = budget.largest(_server(host).memory, found)
    way = f" ({lower} fits)" if lower else ""
    evidence = f"{sides}: {gib(-found.left_bytes)} GiB more than this host has{way}: {known.BUDGET.says}"
    yield Finding(NAME, "bad", evidence, source=source)


def of_host(host: Host) -> Budget | None:
    """Return the budget of the recipe's server on this host; None without a recipe, or if the host can't be read."""
    if not host.wanted.engine_memory or host.memory() is None:
        return None
    stay = host.wanted.ollama == "leave"
    reserve_gib = host.wanted.reserve_bytes / GIB
    try:
        return host_budget.of(host.context, _server(host), reserve_gib, models_stay=stay)[0]
    except SparkwrightError:
        return None


def _server(host: Host) -> Server:
    return Server.of(host.wanted.container, host.wanted.engine_memory, 0, 0)
