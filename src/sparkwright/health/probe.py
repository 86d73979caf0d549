"""Observing a host, and its rank in a cluster: gathers what `evaluate_observation` needs, and may request one token."""

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
from sparkwright.health.judging.questions import is_power_starved
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Serves
from sparkwright.health.snapshot import build_serves, is_verified_since_start, parse_container, ready_s
from sparkwright.health.store import CheckHistory
from sparkwright.host import evidence, nvidia_smi
from sparkwright.host.cluster import rank
from sparkwright.host.containers import container_labels, containers, crash_loop, engine_socket, server_key
from sparkwright.host.gateway import haproxy_sockets as gateway_now
from sparkwright.host.memory import host_lost, service_guard
from sparkwright.host.module import Context
from sparkwright.host.records import turns, verified_states
from sparkwright.measure import http_probe, server_counters
from sparkwright.trust.container_option_rules import port_bindings
from sparkwright.units import MIB

SECOND_SAMPLE_PAUSE_S = 0.5  # pause between two readings of the counters or of a suspicious GPU
HEALTH_TIMEOUT_S = 5.0


@dataclass
class Prober:
    """Observes one host for a check."""

    #: the host
    context: Context
    history: CheckHistory
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
        self.good = verified_states.load_last(self.context.state)

    @property
    def http(self) -> Http:
        """The HTTP interface of the verified server's engine."""
        return container_labels.engine_of_spec(self.good.get("spec")).http

    @property
    def serves(self) -> Serves:
        """The model and image that the last good state serves."""
        return build_serves(self.good)

    def probe(self, *, busy: str = "") -> Observation:
        """Observe once. busy: describes the run in progress on the host, in which case nothing that could disturb it is done."""
        observation = Observation(
            self.now(), busy=busy, known=bool(self.good), machine=read_machine(self.context), gpus=self._sample_gpus()
        )
        lost = str(host_lost.read_last_loss(self.context.state).get("why", ""))
        level = service_guard.read_level(self.context.state)
        left, lowest = level.left_bytes, level.lowest_bytes
        machine = replace(observation.machine, mem_verified_bytes=left, mem_lowest_bytes=lowest)
        gateway = None if busy else find_gateway_problem(self.context)
        observation = replace(observation, gateway=gateway, lost=lost, level=level, machine=machine)
        if busy or not self.good:
            return observation
        asleep = turns.other_awake_server(self.context.state)
        rank = deployed_rank(self.good)
        gives = tasks.result_noun(self.http)
        observation = replace(
            observation,
            asleep=asleep,
            wake=turns.service_message(self.context.state),
            policy="" if asleep else self.good["spec"].get("restart", ""),
            ready_s=ready_s(self.good),
            rank=rank,
            gives=gives,
        )
        inspected, observation = self._probe_container(observation)
        observation = self._probe_server(observation, inspected)
        return replace(observation, gpus=self._resample_gpus(observation.gpus))

    # -- the container -------------------------------------------------------------------------------------------------

    def _probe_container(self, observation: Observation) -> tuple[dict[str, Any], Observation]:
        """Observe the container: its state, a crash loop, and how it differs from the verified state."""
        name, verified = str(self.good["spec"]["name"]), str(self.good.get("container_id") or "")
        try:
            inspected = containers.inspect(self.context.docker(), name)
            if inspected is None and verified:
                inspected = containers.inspect(self.context.docker(), verified)  # it was renamed
            if inspected is None:
                return {}, replace(observation, container=Container(name, status="absent"))
            container = parse_container(inspected, verified)
            loop = (
                crash_loop.check_and_record(inspected, self.context)
                if container.exit_code or container.status != "exited"
                else ""
            )
            drift = snapshot.find_drift(self.context, self.good, inspected)
            rank = probe_rank(self.context, observation.rank, container, inspected, self.history, start_id(container))
        except SparkwrightError as error:
            return {}, replace(observation, engine_error=error.message, container=Container(name))
        except Exception as error:  # of requests and docker, for an engine that hangs or sends an invalid answer
            return {}, replace(
                observation, engine_error=engine_socket.no_answer_message(error), container=Container(name)
            )
        why = self.history.stopped_for(container.id, self.good)
        answered = self.history.answered == start_id(container) or is_verified_since_start(container, self.good)
        stopping_run = self.history.stopped_by(self.context.state, container.id)
        guard_reason = service_guard.stop_reason(self.context.state, container.id, container.started_s or 0)
        observation = replace(
            observation, container=container, loop=loop, broken=why, stopped=stopping_run, rank=rank, saved=guard_reason
        )
        return inspected, replace(observation, drift=drift, answered=answered)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _probe_server(self, observation: Observation, inspected: dict[str, Any]) -> Observation:
        """Observe /health and the counters, and request a token if nothing else shows that the server generates."""
        url = server_url(self.good["spec"])
        if not url or (inspected and observation.container.status != "running"):
            return replace(observation, server=Server(url))
        http = container_labels.engine_of_container(inspected).http if inspected else self.http
        health = http_probe.send_request(url, http.health, timeout_s=max(HEALTH_TIMEOUT_S, http.health_s))
        server = Server(url, health_status=health.status)
        if health.status != 200:
            return replace(observation, server=server, loading=health.status in http.loading, error=health.error)
        config = inspected.get("Config") or {}
        command = list(config.get("Cmd") or ())
        self.key = key = server_key.read_container_key(self.context.state, inspected) or self._given_key(http)
        before = server_counters.read_counters(http, url, key)[0]
        server, heartbeat = _with_counters(server, before), before.get(roles.HEARTBEAT)
        frozen_s = self._frozen_s(observation, server, heartbeat)
        version = http_probe.query_version(http, url, api_key=key, timeout_s=HEALTH_TIMEOUT_S) or ""
        observation = replace(
            observation, answered=True, server=server, heartbeat=heartbeat, frozen_s=frozen_s, engine_version=version
        )
        if frozen_s is not None and frozen_s >= self.limits.frozen_s:
            return observation
        if server.running and self._is_generating(http, url, key, before):
            return replace(observation, server=replace(server, token="skipped"), frozen_s=None)
        return self._probe_token(http, observation, key, http.low_priority(command))

    def _is_generating(self, http: Http, url: str, key: str, before: Mapping[str, float]) -> bool:
        """Return True if the server generates tokens between two readings of its counters."""
        self.pause(SECOND_SAMPLE_PAUSE_S)
        name = roles.HEARTBEAT
        after = server_counters.read_counters(http, url, key)[0]
        return name in after and name in before and after[name] > before[name]

    def _probe_token(self, http: Http, observation: Observation, key: str, priority: int) -> Observation:
        """Request one token, and record how long it took."""
        name = (self.good.get("serve") or {}).get("served_name", "")
        url, limit_s = observation.server.url, self.limits.token_s
        # a single check has to detect a stall of a cluster: by the next one the group may have exited
        if observation.rank.cluster and observation.server.running:
            limit_s = max(limit_s, self.limits.frozen_s)
        check = http_probe.check_token(http, url, name, api_key=key, timeout_s=limit_s, priority=priority)
        if check.token == "none":
            after = server_counters.read_counters(http, url, key)[0].get(roles.HEARTBEAT)
            others_progress = after is not None and after > (observation.heartbeat or 0)
            token = "skipped" if others_progress else "none"  # a long queue is not a fault as long as others get tokens
            is_still = (
                observation.rank.cluster
                and observation.server.running
                and after is not None
                and after == observation.heartbeat
            )
            frozen_s = None if others_progress else check.token_s if is_still else observation.frozen_s
            return replace(observation, server=replace(observation.server, token=token), frozen_s=frozen_s)
        token_s = round(check.token_s, 3) if check.token == "made" else None
        return replace(
            observation, server=replace(observation.server, token=check.token, token_s=token_s), error=check.error
        )

    def _frozen_s(self, observation: Observation, server: Server, heartbeat: float | None) -> float | None:
        """Return how long nothing was generated while requests were running at this check and the previous one.

        Both checks must have seen the same start of the server. A token that the previous check did not get in time counts as a
        running request.
        """
        since_s = self.history.still_since_s(start_id(observation.container), heartbeat)
        return observation.time_s - since_s if server.running and since_s is not None else None

    def _given_key(self, http: Http) -> str:
        secret = self.context.secrets.get(http.key_variable)
        return secret.reveal() if secret else ""

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _sample_gpus(self) -> tuple[Gpu, ...]:
        sample = nvidia_smi.sample_gpu(self.context.machine)
        return (Gpu(**sample),) if sample else ()

    def _resample_gpus(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Take a second sample if the first is suspicious, because a single moment proves nothing."""
        if not gpus or not is_power_starved(gpus[0], self.limits):
            return gpus
        self.pause(SECOND_SAMPLE_PAUSE_S)
        return gpus + self._sample_gpus()


def read_machine(context: Context) -> Machine:
    """Return the host's memory, disk and uptime, with unreadable values left unknown."""
    machine, memory = context.machine, evidence.read_meminfo(context) or {}
    swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    try:
        free_bytes = machine.free_bytes(machine.home)
    except OSError:
        free_bytes = None
    try:
        uptime_s = float(machine.path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        uptime_s = None
    swap_used = swap_total - swap_free if swap_total is not None and swap_free is not None else None
    return Machine(memory.get("MemTotal"), memory.get("MemAvailable"), swap_total, swap_used, free_bytes, uptime_s)


def find_gateway_problem(context: Context) -> str | None:
    """Return the problem of this host's gateway; empty if there is none, None if the host has no gateway."""
    status = gateway_now.inspect(context.state)
    return gateway_now.describe_problem(status) if status else None


def start_id(container: Container) -> str:
    """Return an identifier for the current start of a container."""
    return f"{container.id}@{container.started_s}@{container.restarts}" if container.id else ""


def _with_counters(server: Server, counters: Mapping[str, float]) -> Server:
    return replace(
        server,
        running=counters.get(roles.RUNNING),
        waiting=counters.get(roles.WAITING),
        generated_tokens=counters.get(roles.GENERATED),
        kv_cache_used=counters.get(roles.KV_CACHE_USED),
    )


def server_url(spec: dict[str, Any]) -> str:
    """Return the URL on this host of the server that a spec describes."""
    return containers.url_of({"HostConfig": {"PortBindings": port_bindings(tuple(spec.get("ports") or ()))}})


#: limits for reading a log; the group is in its first 100 kB, the reason for an exit in its last lines
MAX_LOG_BYTES, LOG_TIMEOUT_S = 8 * MIB, 5.0


def deployed_rank(good: Mapping[str, Any]) -> Rank:
    """Return the rank that the last verified state was deployed as; without a cluster name for a server on its own."""
    membership = container_labels.membership_of_labels((good.get("spec") or {}).get("labels"))
    return Rank(membership.cluster, membership.rank, len(membership.members)) if membership.cluster else Rank()


def read_rank(
    context: Context, good: Mapping[str, Any], container: Container, past_checks: CheckHistory, start: str
) -> Rank:
    """Return the observed state of this host's rank. container: the current one. start: see `probe_rank`."""
    deployed = deployed_rank(good)
    if not deployed.cluster or container.status in ("", "absent"):
        return deployed
    try:
        inspected = containers.inspect(context.docker(), container.name) or {}
        return probe_rank(context, deployed, container, inspected, past_checks, start)
    except SparkwrightError as error:
        return replace(deployed, error=error.message.rstrip("."))
    except Exception as error:  # exceptions of docker and requests, for an engine that hangs or sends an invalid answer
        return replace(deployed, error=engine_socket.no_answer_message(error))


def probe_rank(
    context: Context,
    deployed: Rank,
    container: Container,
    inspected: Mapping[str, Any],
    past_checks: CheckHistory,
    start: str,
) -> Rank:
    """Return the observed state of a member's rank.

    A place in the group lasts as long as the process, so the log is not read again once it has proved the place for this start.

    Args:
        start: identifier of the current start of the container.
    """
    if not deployed.cluster or not inspected:
        return deployed
    if container.status == "running" and past_checks.joined.get("start") == start:
        group = past_checks.joined
        return replace(deployed, group_rank=group["rank"], group_world=group["world"], transport=group["transport"])
    try:
        member_log = rank.read_member_log(context.docker(), inspected, max_bytes=MAX_LOG_BYTES, max_s=LOG_TIMEOUT_S)
    except Failed as error:
        return replace(deployed, error=error.message.rstrip("."))
    if container.status == "running" and member_log.rank is not None and member_log.world_size is not None:
        group = {"rank": member_log.rank, "world": member_log.world_size, "transport": member_log.transport}
        past_checks.joined = {"start": start, **group}
    return replace(
        deployed,
        group_rank=member_log.rank,
        group_world=member_log.world_size,
        transport=member_log.transport,
        stage=member_log.stage,
        failure=member_log.failure,
    )
