"""A health check: observe, evaluate, damp, record, notify, and restart the server if allowed."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkwright.engines import http as engine_http
from sparkwright.errors import SparkwrightError
from sparkwright.health import heal, model_hashes, notify, store, textfile
from sparkwright.health.judging.judge import Evaluation, damp_state, evaluate_observation
from sparkwright.health.judging.observation import Observation
from sparkwright.health.probe import Prober, start_id
from sparkwright.health.record import Cost, Gpu, Record, Speed
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import crash_loop, engine_socket
from sparkwright.host.memory import host_outage, service_guard
from sparkwright.host.module import Context
from sparkwright.host.records import history as run_history
from sparkwright.host.records import verified_states
from sparkwright.host.runs import lock
from sparkwright.measure import server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.trust.redact import Redactor

DOCKER_TIMEOUT_S = 20
#: measures the decode rate of the observed server over this number of tokens
MeasureSpeed = Callable[[Context, Observation, int], Speed]


@dataclass
class HealthCheck:
    """A health check of one host."""

    context: Context
    settings: Settings
    measure: MeasureSpeed
    run_plan: heal.RunPlan
    #: True if the check was started by the host's timer
    scheduled: bool = False
    #: True to measure the decode rate even if it is not due
    measure_now: bool = False
    #: returns the time in seconds since the epoch; replaced in tests
    now: Callable[[], float] = time.time
    #: waits for a number of seconds; replaced in tests
    pause: Callable[[float], None] = time.sleep

    def run(self) -> Record:
        """Check once, and again after an attempted restart. Concurrent checks wait for each other."""
        if not self.context.check and not _describe_active_run(self.context):
            host_outage.record_outages(self.context)
            service_guard.record_actions(self.context)
        with store.acquire_check_lock(self.context.state):
            record, _, decision = self._check_once()
        if not self.scheduled:
            return record
        heal.return_to_gateway(self.context, record)
        joint_decision = self._vote_in_cluster(record, decision)
        if joint_decision.plan is None:
            return record if joint_decision is decision else self._check_again(joint_decision.message)
        with store.acquire_check_lock(self.context.state):
            history = CheckHistory.load(self.context.state)
        outcome = heal.restart(
            self.context,
            joint_decision,
            history,
            joint_decision.restart_reason or record.why,
            self.now(),
            self.run_plan,
        )
        return self._check_again(outcome, restarted=True)

    def _vote_in_cluster(self, record: Record, decision: heal.Decision) -> heal.Decision:
        """Return the decision, after a vote of the members if the server belongs to a cluster."""
        if not record.rank.cluster:
            return decision
        from sparkwright.health import cluster_heal

        describe_run = lambda: _describe_active_run(self.context)  # noqa: E731
        return cluster_heal.vote_on_decision(self.context, self.settings, record, decision, describe_run)

    def _check_again(self, heal_outcome: str, *, restarted: bool = False) -> Record:
        """Check again. heal_outcome: outcome of the restart, or the reason why there was none."""
        with store.acquire_check_lock(self.context.state):
            record, history, _ = self._check_once(heal_outcome=heal_outcome)
            if restarted:
                heal.record_outcome(record, history, self.context.state)
        return record

    def _check_once(self, heal_outcome: str = "") -> tuple[Record, CheckHistory, heal.Decision]:
        """Check once. Return the record, the history for the next check, and the decision about a restart."""
        started_s, began_cpu_s = time.monotonic(), _cpu_s()
        history = CheckHistory.load(self.context.state)
        prober = Prober(self.context, history, self.settings.limits, self.now, self.pause)
        active_run = _describe_active_run(self.context)
        observation = self._observe(prober, active_run)
        evaluation = evaluate_observation(observation, self.settings.limits)
        if not active_run:
            observation = replace(observation, speed=self._measure_speed(observation, evaluation, history))
            if new_run := _describe_active_run(self.context):  # a run started in the meantime
                observation = self._observe(prober, new_run)
            evaluation = evaluate_observation(observation, self.settings.limits)
        evaluation = self._break_loop(observation, evaluation, history)
        record = self._build_record(observation, evaluation, history, prober)
        decision = heal.decide_restart(record, history, self.settings, self.context.state, observation.time_s)
        cost = Cost(round(time.monotonic() - started_s, 3), round(_cpu_s() - began_cpu_s, 3))
        record = replace(record, healed=heal_outcome or decision.message, cost=cost)
        self._save_and_notify(observation, record, history, prober)
        self._update_guard(observation)
        return record, history, decision

    def _observe(self, prober: Prober, active_run: str) -> Observation:
        """Return the prober's observation with the state of the periodic hash of the model's files."""
        observation = prober.probe(current_run=active_run)
        if active_run or not observation.has_verified_server:
            return observation
        model_files = model_hashes.load_model_files(self.context, self.settings, observation.time_s)
        return replace(observation, model_files=model_files)

    def _build_record(
        self, observation: Observation, evaluation: Evaluation, history: CheckHistory, prober: Prober
    ) -> Record:
        """Return the record, with the damped state.

        While a run is in progress on the host, the check does not count and the history stays unchanged.
        """
        previous_state = history.state
        if observation.active_run:
            reported_state, flapping = evaluation.state, False
            since_s = observation.time_s
        else:
            history.seen.append(evaluation.state)
            damped = damp_state(previous_state, history.seen)
            reported_state, flapping = damped.state, damped.flapping
            since_s = history.since_s if reported_state == previous_state else observation.time_s
            history.state, history.since_s = reported_state, since_s
            history.cures = history.cures + 1 if evaluation.cure == "restart" else 0
            history.failed = 0 if evaluation.state == "ok" else history.failed
        server = replace(observation.server, served_tok_per_s=_served_tok_per_s(observation, history))
        return Record(
            time_s=round(observation.time_s, 3),
            state=reported_state,
            seen=evaluation.state,
            since_s=round(since_s, 3),
            before=previous_state or "",
            why=evaluation.why,
            cure=evaluation.cure,
            flapping=flapping,
            busy=observation.active_run,
            evidence=evaluation.evidence,
            container=observation.container,
            rank=observation.rank,
            server=server,
            speed=observation.speed,
            machine=observation.machine,
            gpu=observation.gpus[-1] if observation.gpus else Gpu(),
            serves=replace(prober.serves, engine_version=observation.engine_version),
            drift=observation.drift,
            every_s=self.settings.every_s,
            sandbox=self.context.machine.sandbox,
        )

    def _save_and_notify(self, observation: Observation, record: Record, history: CheckHistory, prober: Prober) -> None:
        """Save the record, and notify if the check is scheduled. A failure to do so is only noted."""
        if observation.server.health_status == 200:
            history.answered = start_id(observation.container)
            is_frozen = observation.frozen_s is not None
            history.counted = {
                # while the server is frozen, the time at which it froze
                "time_s": history.counted["time_s"] if is_frozen else observation.time_s,
                "start": start_id(observation.container),
                "running": observation.server.running,
                "token": observation.server.token,
                **_counters_after_check(observation, record, prober),
            }
        if self.context.check:
            return
        if self.scheduled:
            notify.send_if_changed(record, history, self.settings, note=self.context.note, pause=self.pause)
        try:
            store.write_record(
                self.context.state, record, Redactor(secret.reveal() for secret in self.context.secrets.values())
            )
            history.save(self.context.state)
        except OSError as error:
            self.context.note(f"cannot save the check: {error.strerror}")
        textfile.write(self.context, record, history, self.settings)

    def _update_guard(self, observation: Observation) -> None:
        """Pass the running containers to the memory guard, if one is installed."""
        if self.context.check or observation.active_run or observation.engine_error or not self.settings.every_s:
            return
        try:
            service_guard.write_configuration(self.context)
        except Exception as error:  # the Docker Engine may be restarting; the next check retries
            self.context.note(f"cannot update the memory guard's containers: {engine_socket.no_answer_message(error)}")

    # -- beyond a single observation --------------------------------------------------------------------------------------

    def _measure_speed(self, observation: Observation, evaluation: Evaluation, history: CheckHistory) -> Speed:
        """Measure the decode rate if that is due and the server generates tokens; otherwise return the last measurement."""
        last_speed = history.last_speed
        interval_s = self.settings.smoke_every_s
        age_s = observation.time_s - (last_speed.measured_s or 0.0)
        is_due = self.scheduled and bool(interval_s) and not 0 <= age_s < interval_s
        if (
            not (is_due or self.measure_now)
            or evaluation.state not in ("ok", "degraded")
            or observation.server.token != "made"
            or self.context.check
        ):
            return last_speed
        new_speed = self.measure(self.context, observation, self.settings.smoke_tokens)
        if new_speed.tok_per_s is None:
            return replace(
                last_speed, verdict=last_speed.verdict if last_speed.tok_per_s is not None else new_speed.verdict
            )
        history.speed = dataclasses.asdict(new_speed)
        return new_speed

    def _break_loop(self, observation: Observation, evaluation: Evaluation, history: CheckHistory) -> Evaluation:
        """Stop a crash loop immediately, unless a run is in progress on the host."""
        if not observation.crash_loop_reason or self.context.check:
            return evaluation
        name = observation.container.name
        requester = run_history.requester(self.context) or heal.ACTOR
        owner = lock.LockOwner("stopping a crash loop", requester, self.context.run_id, os.getpid(), time.time())
        try:
            with lock.acquire(self.context.state, owner, host=self.settings.host or "the host"):
                crash_loop.stop_crash_loop(self.context, name, observation.crash_loop_reason, requester)
        except SparkwrightError as error:
            self.context.note(f"could not stop the crash loop of {name}: {error.message}")
            return evaluation
        since = str(verified_states.load_last(self.context.state).since or "")
        history.broken = {"id": observation.container.id, "why": observation.crash_loop_reason, "since": since}
        return replace(evaluation, why=f"{evaluation.why}: stopped, restart policy set to no")


def _counters_after_check(observation: Observation, record: Record, prober: Prober) -> dict[str, float | None]:
    """Return the server's counters including this check's tokens, so that the next check does not count them as traffic."""
    api, check_tokens = prober.api, 1 if observation.server.token == "made" else 0
    generated_tokens, heartbeat = observation.server.generated_tokens, observation.heartbeat
    is_measured = generated_tokens is not None and record.speed.measured_s == observation.time_s
    if is_measured or (check_tokens and api.has_separate_heartbeat):
        counters = server_counters.read_counters(Target(api, observation.server.url, api_key=prober.key))[0]
        generated_tokens, heartbeat, check_tokens = (
            counters.get(engine_http.GENERATED),
            counters.get(engine_http.HEARTBEAT),
            0,
        )
    counters_after = (
        {"generated": generated_tokens, "heartbeat": heartbeat}
        if api.has_separate_heartbeat
        else {"generated": generated_tokens}
    )
    return {name: None if count is None else count + check_tokens for name, count in counters_after.items()}


def _served_tok_per_s(observation: Observation, history: CheckHistory) -> float | None:
    """Return the tokens per second of all streams since the previous check; None if the server was restarted in between."""
    last_counters, generated_tokens = history.counted, observation.server.generated_tokens
    if (
        generated_tokens is None
        or last_counters.get("start") != start_id(observation.container)
        or last_counters.get("generated") is None
    ):
        return None
    seconds = observation.time_s - float(last_counters["time_s"])
    return round((generated_tokens - float(last_counters["generated"])) / seconds, 2) if seconds > 0 else None


def _describe_active_run(context: Context) -> str:
    """Describe the run that holds the host's lock; empty if there is none or it is this run."""
    owner, is_alive = lock.inspect(context.state)
    return str(owner) if owner is not None and is_alive and owner.run != context.run_id else ""


def _cpu_s() -> float:
    """Return the CPU time of this process and of the programs that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
