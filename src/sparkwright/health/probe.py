"""Observing a host, and its rank in a cluster: gathers everything that `judge` needs, and may request one token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines import tasks
from sparkwright.engines.http import Http
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.health import snapshot
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import starved
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Serves
from sparkwright.health.snapshot import container_of, ready_s, ready_since, serves_of
from sparkwright.health.store import CheckHistory
from sparkwright.host import evidence, nvidia_smi
from sparkwright.host.cluster import rank
from sparkwright.host.containers import container_labels, containers, crash_loop, engine_socket, server_key
from sparkwright.host.gateway import haproxy_sockets as gateway_now
from sparkwright.host.memory import host_lost, service_guard
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, turns
from sparkwright.measure import http_probe
from sparkwright.trust.container_words import port_bindings
from sparkwright.units import MIB

AGAIN_S = 0.5  # pause between two readings of the counters or of a suspicious GPU
HEALTH_S = 5.0


@dataclass
class Prober:
    """Observes one host for a check."""

    #: the host
    context: Context
    remembered: CheckHistory
    limits: Limits
    #: returns the time in seconds since the epoch
    now: Callable[[], float] = time.time
    #: waits for a number of seconds
    pause: Callable[[float], None] = time.sleep
    #: the host's last good state
    good: dict[str, Any] = field(default_factory=dict)
    #: the server's API key; set once the server has been queried
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.good = good_states.last(self.context.state)

    @property
    def http(self) -> Http:
        """The HTTP interface of the verified server's engine."""
        return container_labels.engine_of_spec(self.good.get("spec")).http

    @property
    def serves(self) -> Serves:
        """The model and image that the last good state serves."""
        return serves_of(self.good)

    def probe(self, *, busy: str = "") -> Observation:
        """Observe once. busy: describes the run in progress on the host, in which case nothing that could disturb it is done."""
        found = Observation(
            self.now(), busy=busy, known=bool(self.good), machine=machine_of(self.context), gpus=self._gpus()
        )
        lost = str(host_lost.remembered(self.context.state).get("why", ""))
        level = service_guard.level(self.context.state)
        left, lowest = level.left_bytes, level.lowest_bytes
        machine = replace(found.machine, mem_verified_bytes=left, mem_lowest_bytes=lowest)
        gateway = None if busy else gateway_of(self.context)
        found = replace(found, gateway=gateway, lost=lost, level=level, machine=machine)
        if busy or not self.good:
            return found
        asleep = turns.in_place_of(self.context.state)
        rank = deployed_rank(self.good)
        gives = tasks.noun(self.http)
        found = replace(
            found,
            asleep=asleep,
            wake=turns.message(self.context.state),
            policy="" if asleep else self.good["spec"].get("restart", ""),
            ready_s=ready_s(self.good),
            rank=rank,
            gives=gives,
        )
        inspected, found = self._container(found)
        found = self._server(found, inspected)
        return replace(found, gpus=self._gpus_again(found.gpus))

    # -- the container -------------------------------------------------------------------------------------------------

    def _container(self, found: Observation) -> tuple[dict[str, Any], Observation]:
        """Observe the container: its state, a crash loop, and how it differs from the verified state."""
        name, verified = str(self.good["spec"]["name"]), str(self.good.get("container_id") or "")
        try:
            inspected = containers.inspect(self.context.docker(), name)
            if inspected is None and verified:
                inspected = containers.inspect(self.context.docker(), verified)  # it was renamed
            if inspected is None:
                return {}, replace(found, container=Container(name, status="absent"))
            box = container_of(inspected, verified)
            loop = crash_loop.inspect(inspected, self.context) if box.exit_code or box.status != "exited" else ""
            differs = snapshot.drift_found(self.context, self.good, inspected)
            rank = probe_rank(self.context, found.rank, box, inspected, self.remembered, start_of(box))
        except SparkwrightError as error:
            return {}, replace(found, engine_error=error.message, container=Container(name))
        except Exception as error:  # of requests and docker, for an engine that hangs or sends an invalid answer
            return {}, replace(found, engine_error=engine_socket.silent(error), container=Container(name))
        why = self.remembered.stopped_for(box.id, self.good)
        answered = self.remembered.answered == start_of(box) or ready_since(box, self.good)
        ours = self.remembered.stopped_by(self.context.state, box.id)
        saved = service_guard.of_container(self.context.state, box.id, box.started_s or 0)
        found = replace(found, container=box, loop=loop, broken=why, stopped=ours, rank=rank, saved=saved)
        return inspected, replace(found, drift=differs, answered=answered)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _server(self, found: Observation, inspected: dict[str, Any]) -> Observation:
        """Observe /health and the counters, and request a token if nothing else shows that the server generates."""
        url = url_of_spec(self.good["spec"])
        if not url or (inspected and found.container.status != "running"):
            return replace(found, server=Server(url))
        http = container_labels.engine_of_container(inspected).http if inspected else self.http
        health = http_probe.ask(url, http.health, timeout_s=max(HEALTH_S, http.health_s))
        server = Server(url, health_status=health.status)
        if health.status != 200:
            return replace(found, server=server, loading=health.status in http.loading, error=health.error)
        config = inspected.get("Config") or {}
        command = list(config.get("Cmd") or ())
        self.key = key = server_key.of_container(self.context.state, inspected) or self._given_key(http)
        before = http_probe.read_counters(http, url, key)[0]
        server, heartbeat = _counted(server, before), before.get(roles.HEARTBEAT)
        frozen_s = self._frozen_s(found, server, heartbeat)
        version = http_probe.version(http, url, api_key=key, timeout_s=HEALTH_S) or ""
        found = replace(
            found, answered=True, server=server, heartbeat=heartbeat, frozen_s=frozen_s, engine_version=version
        )
        if frozen_s is not None and frozen_s >= self.limits.frozen_s:
            return found
        if server.running and self._moves(http, url, key, before):
            return replace(found, server=replace(server, token="skipped"), frozen_s=None)
        return self._token(http, found, key, http.low_priority(command))

    def _moves(self, http: Http, url: str, key: str, before: Mapping[str, float]) -> bool:
        """Return True if the server generates tokens between two readings of its counters."""
        self.pause(AGAIN_S)
        name = roles.HEARTBEAT
        after = http_probe.read_counters(http, url, key)[0]
        return name in after and name in before and after[name] > before[name]

    def _token(self, http: Http, found: Observation, key: str, priority: int) -> Observation:
        """Request one token, and record how long it took."""
        name = (self.good.get("serve") or {}).get("served_name", "")
        url, limit_s = found.server.url, self.limits.token_s
        if (
            found.rank.cluster and found.server.running
        ):  # a single check has to detect a stall, because by the next one the group may have exited
            limit_s = max(limit_s, self.limits.frozen_s)
        made = http_probe.token_check(http, url, name, api_key=key, timeout_s=limit_s, priority=priority)
        if made.token == "none":
            after = http_probe.read_counters(http, url, key)[0].get(roles.HEARTBEAT)
            others = after is not None and after > (found.heartbeat or 0)
            token = "skipped" if others else "none"  # a long queue is not a fault as long as others get tokens
            still = found.rank.cluster and found.server.running and after is not None and after == found.heartbeat
            frozen_s = None if others else made.token_s if still else found.frozen_s
            return replace(found, server=replace(found.server, token=token), frozen_s=frozen_s)
        token_s = round(made.token_s, 3) if made.token == "made" else None
        return replace(found, server=replace(found.server, token=made.token, token_s=token_s), error=made.error)

    def _frozen_s(self, found: Observation, server: Server, heartbeat: float | None) -> float | None:
        """Return how long nothing was generated while requests were running at this check and the previous one.

        Both checks must have seen the same start of the server. A token that the previous check did not get in time counts as a
        running request.
        """
        since_s = self.remembered.still_since_s(start_of(found.container), heartbeat)
        return found.time_s - since_s if server.running and since_s is not None else None

    def _given_key(self, http: Http) -> str:
        secret = self.context.secrets.get(http.key_variable)
        return secret.reveal() if secret else ""

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _gpus(self) -> tuple[Gpu, ...]:
        found = nvidia_smi.sample(self.context.machine)
        return (Gpu(**found),) if found else ()

    def _gpus_again(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Take a second sample if the first is suspicious, because a single moment proves nothing."""
        if not gpus or not starved(gpus[0], self.limits):
            return gpus
        self.pause(AGAIN_S)
        return gpus + self._gpus()


def machine_of(context: Context) -> Machine:
    """Return the host's memory, disk and uptime, with unreadable values left unknown."""
    machine, memory = context.machine, evidence.memory(context) or {}
    swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    try:
        free = machine.free_bytes(machine.home)
    except OSError:
        free = None
    try:
        uptime_s = float(machine.path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        uptime_s = None
    used = swap_total - swap_free if swap_total is not None and swap_free is not None else None
    return Machine(memory.get("MemTotal"), memory.get("MemAvailable"), swap_total, used, free, uptime_s)


def gateway_of(context: Context) -> str | None:
    """Return the problem of this host's gateway; empty if there is none, None if the host has no gateway."""
    found = gateway_now.inspect(context.state)
    return gateway_now.wrong(found) if found else None


def start_of(box: Container) -> str:
    """Return an identifier for the current start of a container."""
    return f"{box.id}@{box.started_s}@{box.restarts}" if box.id else ""


def _counted(server: Server, counters: Mapping[str, float]) -> Server:
    return replace(
        server,
        running=counters.get(roles.RUNNING),
        waiting=counters.get(roles.WAITING),
        generated_tokens=counters.get(roles.GENERATED),
        kv_cache_used=counters.get(roles.KV_CACHE_USED),
    )


def url_of_spec(spec: dict[str, Any]) -> str:
    """Return the URL on this host of the server that a spec describes."""
    return containers.url_of({"HostConfig": {"PortBindings": port_bindings(tuple(spec.get("ports") or ()))}})


#: limits for reading a log; the group is in its first 100 kB, the reason for an exit in its last lines
LOG_BYTES, LOG_S = 8 * MIB, 5.0


def deployed_rank(good: Mapping[str, Any]) -> Rank:
    """Return the rank that the last verified state was deployed as; without a cluster name for a server on its own."""
    place = container_labels.membership_of_labels((good.get("spec") or {}).get("labels"))
    return Rank(place.cluster, place.rank, len(place.members)) if place.cluster else Rank()


def rank_now(context: Context, good: Mapping[str, Any], box: Container, past: CheckHistory, start: str) -> Rank:
    """Return the observed state of this host's rank. box: the current container. start: see `probe_rank`."""
    wanted = deployed_rank(good)
    if not wanted.cluster or box.status in ("", "absent"):
        return wanted
    try:
        inspected = containers.inspect(context.docker(), box.name) or {}
        return probe_rank(context, wanted, box, inspected, past, start)
    except SparkwrightError as error:
        return replace(wanted, error=error.message.rstrip("."))
    except Exception as error:  # exceptions of docker and requests, for an engine that hangs or sends an invalid answer
        return replace(wanted, error=engine_socket.silent(error))


def probe_rank(
    context: Context, wanted: Rank, box: Container, inspected: Mapping[str, Any], past: CheckHistory, start: str
) -> Rank:
    """Return the observed state of a member's rank.

    A place in the group lasts as long as the process, so the log is not read again once it has proved the place for this start.

    Args:
        start: identifier of the current start of the container.
    """
    if not wanted.cluster or not inspected:
        return wanted
    if box.status == "running" and past.joined.get("start") == start:
        group = past.joined
        return replace(wanted, group_rank=group["rank"], group_world=group["world"], transport=group["transport"])
    try:
        found = rank.of_log(context.docker(), inspected, most_bytes=LOG_BYTES, most_s=LOG_S)
    except Failed as error:
        return replace(wanted, error=error.message.rstrip("."))
    if box.status == "running" and found.rank is not None and found.world_size is not None:
        group = {"rank": found.rank, "world": found.world_size, "transport": found.transport}
        past.joined = {"start": start, **group}
    return replace(
        wanted,
        group_rank=found.rank,
        group_world=found.world_size,
        transport=found.transport,
        stage=found.stage,
        failure=found.failure,
    )
