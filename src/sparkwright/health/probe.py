"""Observe a host and its rank in a cluster for `evaluate_observation`, with at most one token request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.engines import http as engine_http
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
from sparkwright.host.gateway import haproxy_sockets
from sparkwright.host.memory import host_outage, service_guard
from sparkwright.host.module import Context
from sparkwright.host.records import turns, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import http_probe, server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.protocol.container import SpecRecord
from sparkwright.trust.container_option_rules import port_bindings
from sparkwright.units import MIB

#: pause between two readings of the counters or of a suspicious GPU, in seconds
SECOND_SAMPLE_PAUSE_S = 0.5
HEALTH_TIMEOUT_S = 5.0
#: limits for reading a log: the group is named in its first 100 kB, the reason for an exit in its last lines
MAX_LOG_BYTES, LOG_TIMEOUT_S = 8 * MIB, 5.0


@dataclass
class Prober:
    """Observes one host for a check."""

    context: Context
    history: CheckHistory
    limits: Limits
    #: returns the time in seconds since the epoch
    now: Callable[[], float] = time.time
    #: waits for a number of seconds
    pause: Callable[[float], None] = time.sleep
    #: the host's last verified state
    verified_state: VerifiedState = field(init=False)
    #: the server's API key; empty until the server is queried
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.verified_state = verified_states.load_last(self.context.state)

    @property
    def api(self) -> Http:
        """The HTTP interface of the verified server's engine."""
        return container_labels.engine_of_spec(self.verified_state.spec).http

    @property
    def serves(self) -> Serves:
        """The model and image of the last verified state."""
        return build_serves(self.verified_state)

    def probe(self, *, current_run: str = "") -> Observation:
        """Observe once. current_run: the run in progress on the host, which must not be disturbed; empty if there is none."""
        state = self.context.state
        memory_level = service_guard.read_level(state)
        observation = Observation(
            self.now(),
            active_run=current_run,
            has_verified_server=bool(self.verified_state),
            machine=replace(
                read_machine(self.context),
                mem_verified_bytes=memory_level.left_bytes,
                mem_lowest_bytes=memory_level.lowest_bytes,
            ),
            memory_level=memory_level,
            gpus=self._sample_gpus(),
            gateway_problem=None if current_run else find_gateway_problem(self.context),
            host_outage=str(host_outage.read_last_outage(state).get("why", "")),
        )
        if current_run:
            return observation
        awake_server = turns.other_awake_server(state)
        if not self.verified_state:
            return replace(observation, awake_server=awake_server)
        observation = replace(
            observation,
            awake_server=awake_server,
            wake_message=turns.service_message(state),
            restart_policy="" if awake_server else self.verified_state.spec.get("restart", ""),
            ready_s=ready_s(self.verified_state),
            rank=deployed_rank(self.verified_state),
            answer_noun=tasks.result_noun(self.api),
        )
        inspected, observation = self._probe_container(observation)
        observation = self._probe_server(observation, inspected)
        return replace(observation, gpus=self._resample_gpus(observation.gpus))

    # -- the container -------------------------------------------------------------------------------------------------

    def _probe_container(self, observation: Observation) -> tuple[dict[str, Any], Observation]:
        """Observe the container: its state, a crash loop, and its drift from the verified state. Also return its inspect data."""
        name, verified_id = self.verified_state.spec["name"], self.verified_state.container_id
        try:
            inspected = containers.inspect(self.context.docker(), name)
            if inspected is None and verified_id:
                inspected = containers.inspect(self.context.docker(), verified_id)  # it was renamed
            if inspected is None:
                return {}, replace(observation, container=Container(name, status="absent"))
            container = parse_container(inspected, verified_id)
            crash_loop_reason = ""
            if container.exit_code or container.status != "exited":
                crash_loop_reason = crash_loop.find_stop_reason(inspected, self.context)
                if not crash_loop_reason:
                    self._record_restart_count(inspected)
            drift = snapshot.find_drift(self.context, self.verified_state, inspected)
            rank = probe_rank(self.context, observation.rank, container, inspected, self.history)
        except SparkwrightError as error:
            return {}, replace(observation, engine_error=error.message, container=Container(name))
        except Exception as error:  # raised by requests or docker: the Engine hangs or its answer is invalid
            return {}, replace(
                observation, engine_error=engine_socket.no_answer_message(error), container=Container(name)
            )
        has_answered = self.history.answered == start_id(container) or is_verified_since_start(
            container, self.verified_state
        )
        return inspected, replace(
            observation,
            container=container,
            crash_loop_reason=crash_loop_reason,
            loop_stop_reason=self.history.loop_stop_reason(container.id, self.verified_state),
            stopping_run=self.history.find_stopping_run(self.context.state, container.id),
            guard_stop_reason=service_guard.stop_reason(self.context.state, container.id, container.started_s or 0),
            rank=rank,
            drift=drift,
            has_answered=has_answered,
        )

    def _record_restart_count(self, inspected: dict[str, Any]) -> None:
        """Record the restart count for later checks. A failure to do so, as on a full disk, is only noted."""
        try:
            crash_loop.record_sample(inspected, self.context)
        except OSError as error:
            self.context.note(f"cannot save the container's restart count: {error.strerror}")

    # -- the server ----------------------------------------------------------------------------------------------------

    def _probe_server(self, observation: Observation, inspected: dict[str, Any]) -> Observation:
        """Observe /health and the counters, and request a token unless the counters already show that the server generates."""
        url = server_url(self.verified_state.spec)
        if not url or (inspected and observation.container.status != "running"):
            return replace(observation, server=Server(url))
        api = container_labels.engine_of_container(inspected).http if inspected else self.api
        health = http_probe.send_request(url, api.health_path, timeout_s=max(HEALTH_TIMEOUT_S, api.health_timeout_s))
        server = Server(url, health_status=health.status)
        if health.status != 200:
            return replace(
                observation, server=server, loading=health.status in api.loading_statuses, error=health.error
            )
        command = list((inspected.get("Config") or {}).get("Cmd") or ())
        self.key = key = server_key.read_container_key(self.context.state, inspected) or self._configured_key(api)
        target = Target(api, url, self.verified_state.serve.get("served_name", ""), key)
        counters = server_counters.read_counters(target)[0]
        heartbeat = counters.get(engine_http.HEARTBEAT)
        server = replace(
            server,
            running=counters.get(engine_http.RUNNING),
            waiting=counters.get(engine_http.WAITING),
            generated_tokens=counters.get(engine_http.GENERATED),
            kv_cache_used=counters.get(engine_http.KV_CACHE_USED),
        )
        frozen_s = self._frozen_s(observation, server, heartbeat)
        version = http_probe.query_version(target, timeout_s=HEALTH_TIMEOUT_S) or ""
        observation = replace(
            observation,
            has_answered=True,
            server=server,
            heartbeat=heartbeat,
            frozen_s=frozen_s,
            engine_version=version,
        )
        if frozen_s is not None and frozen_s >= self.limits.frozen_s:
            return observation
        if server.running and self._is_generating(target, heartbeat):
            return replace(observation, server=replace(server, token="skipped"), frozen_s=None)
        return self._probe_token(target, observation, api.lowest_priority(command))

    def _is_generating(self, target: Target, heartbeat: float | None) -> bool:
        """Return True if the heartbeat counter increases within a short pause."""
        self.pause(SECOND_SAMPLE_PAUSE_S)
        later_heartbeat = server_counters.read_counters(target)[0].get(engine_http.HEARTBEAT)
        return later_heartbeat is not None and heartbeat is not None and later_heartbeat > heartbeat

    def _probe_token(self, target: Target, observation: Observation, priority: int) -> Observation:
        """Request one token, and record how long it took."""
        limit_s = self.limits.token_s
        is_busy_cluster = bool(observation.rank.cluster and observation.server.running)
        if is_busy_cluster:
            # a stall must be detected within this check, because the group may have exited by the next one
            limit_s = max(limit_s, self.limits.frozen_s)
        check = http_probe.check_token(replace(target, timeout_s=limit_s), priority=priority)
        if check.token == "none":
            later_heartbeat = server_counters.read_counters(target)[0].get(engine_http.HEARTBEAT)
            if later_heartbeat is not None and later_heartbeat > (observation.heartbeat or 0):
                # other requests make progress, so this one is only queued
                token, frozen_s = "skipped", None
            else:
                is_frozen = is_busy_cluster and later_heartbeat is not None and later_heartbeat == observation.heartbeat
                token, frozen_s = "none", check.token_s if is_frozen else observation.frozen_s
            return replace(observation, server=replace(observation.server, token=token), frozen_s=frozen_s)
        token_s = round(check.token_s, 3) if check.token == "made" else None
        return replace(
            observation, server=replace(observation.server, token=check.token, token_s=token_s), error=check.error
        )

    def _frozen_s(self, observation: Observation, server: Server, heartbeat: float | None) -> float | None:
        """Return how long requests have been running without a token; None if one was generated since the previous check."""
        since_s = self.history.unchanged_since_s(start_id(observation.container), heartbeat)
        return observation.time_s - since_s if server.running and since_s is not None else None

    def _configured_key(self, api: Http) -> str:
        secret = self.context.secrets.get(api.key_variable)
        return secret.reveal() if secret else ""

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _sample_gpus(self) -> tuple[Gpu, ...]:
        sample = nvidia_smi.sample_gpu(self.context.machine)
        return (Gpu(**sample),) if sample else ()

    def _resample_gpus(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Append a second sample if the first is suspicious: a single sample may be an outlier."""
        if not gpus or not is_power_starved(gpus[0], self.limits):
            return gpus
        self.pause(SECOND_SAMPLE_PAUSE_S)
        return gpus + self._sample_gpus()


def read_machine(context: Context) -> Machine:
    """Return the host's memory, disk and uptime; None for values that can't be read."""
    machine, memory = context.machine, evidence.read_meminfo(context) or {}
    swap_total_bytes, swap_free_bytes = memory.get("SwapTotal"), memory.get("SwapFree")
    try:
        free_bytes = machine.free_bytes(machine.home)
    except OSError:
        free_bytes = None
    try:
        uptime_s = float(machine.path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        uptime_s = None
    swap_used_bytes = (
        swap_total_bytes - swap_free_bytes if swap_total_bytes is not None and swap_free_bytes is not None else None
    )
    return Machine(
        memory.get("MemTotal"), memory.get("MemAvailable"), swap_total_bytes, swap_used_bytes, free_bytes, uptime_s
    )


def find_gateway_problem(context: Context) -> str | None:
    """Return the problem of this host's gateway; empty if it has none, None if the host has no gateway."""
    status = haproxy_sockets.inspect(context.state)
    return haproxy_sockets.describe_problem(status) if status else None


def start_id(container: Container) -> str:
    """Return an identifier of the container's current start; empty if there is no container."""
    return f"{container.id}@{container.started_s}@{container.restarts}" if container.id else ""


def server_url(spec: SpecRecord) -> str:
    """Return the URL of a spec's server on this host; empty if it publishes no port."""
    return containers.url_of({"HostConfig": {"PortBindings": port_bindings(tuple(spec.get("ports") or ()))}})


def deployed_rank(verified_state: VerifiedState) -> Rank:
    """Return the rank of the last verified state; a `Rank` without a cluster if it is not a member of one."""
    membership = container_labels.membership_of_labels(verified_state.spec.get("labels"))
    return Rank(membership.cluster, membership.rank, len(membership.members)) if membership.cluster else Rank()


def read_rank(context: Context, verified_state: VerifiedState, container: Container, history: CheckHistory) -> Rank:
    """Return the observed state of this host's rank, given the current container."""
    deployed = deployed_rank(verified_state)
    if not deployed.cluster or container.status in ("", "absent"):
        return deployed
    try:
        inspected = containers.inspect(context.docker(), container.name) or {}
        return probe_rank(context, deployed, container, inspected, history)
    except SparkwrightError as error:
        return replace(deployed, error=error.message.rstrip("."))
    except Exception as error:  # raised by requests or docker: the Docker Engine hangs or its answer is invalid
        return replace(deployed, error=engine_socket.no_answer_message(error))


def probe_rank(
    context: Context, deployed: Rank, container: Container, inspected: Mapping[str, Any], history: CheckHistory
) -> Rank:
    """Return the observed state of a member's rank.

    A rank keeps its place in the group for the life of the process, so the log is read only until it shows the place.
    """
    if not deployed.cluster or not inspected:
        return deployed
    current_start_id = start_id(container)
    if container.status == "running" and history.joined.get("start") == current_start_id:
        group = history.joined
        return replace(deployed, group_rank=group["rank"], group_world=group["world"], transport=group["transport"])
    try:
        member_log = rank.read_member_log(context.docker(), inspected, max_bytes=MAX_LOG_BYTES, max_s=LOG_TIMEOUT_S)
    except Failed as error:
        return replace(deployed, error=error.message.rstrip("."))
    if container.status == "running" and member_log.rank is not None and member_log.world_size is not None:
        group = {"rank": member_log.rank, "world": member_log.world_size, "transport": member_log.transport}
        history.joined = {"start": current_start_id, **group}
    return replace(
        deployed,
        group_rank=member_log.rank,
        group_world=member_log.world_size,
        transport=member_log.transport,
        stage=member_log.stage,
        failure=member_log.failure,
    )
