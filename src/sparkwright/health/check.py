"""A health check: observe, judge, damp, record, notify, and heal if allowed."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkwright.engines import http as roles
from sparkwright.errors import SparkwrightError
from sparkwright.health import heal, model_hashes, notify, store, textfile
from sparkwright.health.judging.judge import Judgement, damp, judge
from sparkwright.health.judging.observation import Observation
from sparkwright.health.probe import Prober, start_of
from sparkwright.health.record import Cost, Gpu, Record, Speed
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import crash_loop, engine_socket
from sparkwright.host.memory import host_lost, service_guard
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, history
from sparkwright.host.runs import lock
from sparkwright.measure import http_probe
from sparkwright.trust.redact import Redactor

DOCKER_S = 20  # time limit for answers of the Docker Engine


#: measures the decode rate of the observed server over this number of tokens
MeasureSpeed = Callable[[Context, Observation, int], Speed]


@dataclass
class Check:
    """A health check of one host."""

    #: the host
    context: Context
    settings: Settings
    #: measures the decode rate
    measure: MeasureSpeed
    #: runs the plan of a restart
    run_plan: heal.RunPlan
    #: True if the host's timer started the check
    scheduled: bool = False
    #: measure the decode rate now, even if it is not due
    smoke: bool = False
    #: returns the time in seconds since the epoch; replaced in tests
    now: Callable[[], float] = time.time
    #: waits for a number of seconds; replaced in tests
    pause: Callable[[float], None] = time.sleep

    def run(self) -> Record:
        """Check once, and again after an attempted restart. A second check waits until the first has finished."""
        if not self.context.check and not _who_works(self.context):
            host_lost.settle(self.context)
            service_guard.settle(self.context)
        with store.one_at_a_time(self.context.state):
            record, history, decision = self._once()
        if not self.scheduled:
            return record
        heal.give_back(self.context, record)
        found = self._agreed(record, decision)
        if found.plan is None:
            return record if found is decision else self._again(found.message)
        with store.one_at_a_time(self.context.state):
            history = CheckHistory.of(self.context.state)
        answer = heal.restart(self.context, found, history, found.why or record.why, self.now(), self.run_plan)
        return self._again(answer, restarted=True)

    def _agreed(self, record: Record, decision: heal.Decision) -> heal.Decision:
        """Return the decision, in a cluster after a vote with the other members."""
        if not record.rank.cluster:
            return decision
        from sparkwright.health import cluster_heal

        busy = lambda: _who_works(self.context)  # noqa: E731
        return cluster_heal.agreed(self.context, self.settings, record, decision, busy)

    def _again(self, healed: str, *, restarted: bool = False) -> Record:
        """Check again, after the restart or its refusal."""
        with store.one_at_a_time(self.context.state):
            record, history, _ = self._once(healed=healed)
            if restarted:
                heal.remember_outcome(record, history, self.context.state)
        return record

    def _once(self, healed: str = "") -> tuple[Record, CheckHistory, heal.Decision]:
        """Check once. Return the record, the history for the next check, and the decision about a restart."""
        started_s, cpu = time.monotonic(), _cpu_s()
        history = CheckHistory.of(self.context.state)
        prober = Prober(self.context, history, self.settings.limits, self.now, self.pause)
        busy = _who_works(self.context)
        observed = self._observed(prober, busy)
        judgement = judge(observed, self.settings.limits)
        if not busy:
            observed = replace(observed, speed=self._speed(observed, judgement, history))
            came = _who_works(self.context)  # a run that started in the meantime
            observed = self._observed(prober, came) if came else observed
            judgement = judge(observed, self.settings.limits)
        judgement = self._break_loop(observed, judgement, history)
        record = self._record(observed, judgement, history, prober)
        decision = heal.decide(record, history, self.settings, self.context.state, observed.time_s)
        cost = Cost(round(time.monotonic() - started_s, 3), round(_cpu_s() - cpu, 3))
        record = replace(record, healed=healed or decision.message, cost=cost)
        self._leave(observed, record, history, prober)
        self._tell_the_guard(observed)
        return record, history, decision

    def _observed(self, prober: Prober, busy: str) -> Observation:
        """Return the prober's observation, including the state of the periodic hash of the model's files."""
        observed = prober.probe(busy=busy)
        if busy or not observed.known:
            return observed
        return replace(observed, model_files=model_hashes.observed(self.context, self.settings, observed.time_s))

    def _record(self, observed: Observation, judgement: Judgement, history: CheckHistory, prober: Prober) -> Record:
        """Return the record, after damping.

        While a run is in progress on the host, the check does not count, and the state of the last check is kept.
        """
        before = history.state
        if observed.busy:
            reported, flapping = judgement.state, False
            since_s = observed.time_s
        else:
            history.seen.append(judgement.state)
            result = damp(before, history.seen)
            reported, flapping = result.state, result.flapping
            since_s = history.since_s if reported == before else observed.time_s
            history.state, history.since_s = reported, since_s
            history.cures = history.cures + 1 if judgement.cure == "restart" else 0
            history.failed = 0 if judgement.state == "ok" else history.failed
        server = replace(observed.server, served_tok_per_s=_served(observed, history))
        return Record(
            time_s=round(observed.time_s, 3),
            state=reported,
            seen=judgement.state,
            since_s=round(since_s, 3),
            before=before or "",
            why=judgement.why,
            cure=judgement.cure,
            flapping=flapping,
            busy=observed.busy,
            evidence=judgement.evidence,
            container=observed.container,
            rank=observed.rank,
            server=server,
            speed=observed.speed,
            machine=observed.machine,
            gpu=observed.gpus[-1] if observed.gpus else Gpu(),
            serves=replace(prober.serves, engine_version=observed.engine_version),
            drift=observed.drift,
            every_s=self.settings.every_s,
            sandbox=self.context.machine.sandbox,
        )

    def _leave(self, observed: Observation, record: Record, history: CheckHistory, prober: Prober) -> None:
        """Save the record, and notify. A failure to write or notify never hides the check itself."""
        if observed.server.health_status == 200:
            history.answered = start_of(observed.container)
            frozen = observed.frozen_s is not None
            history.counted = {
                "time_s": history.counted["time_s"]
                if frozen
                else observed.time_s,  # keep the time since which it is frozen
                "start": start_of(observed.container),
                "running": observed.server.running,
                "token": observed.server.token,
                **_with_own(observed, record, prober),
            }
        if self.context.check:
            return
        if self.scheduled:
            notify.tell(record, history, self.settings, note=self.context.note, pause=self.pause)
        try:
            store.write(
                self.context.state, record, Redactor(secret.reveal() for secret in self.context.secrets.values())
            )
            history.save(self.context.state)
        except OSError as error:
            self.context.note(f"cannot save the check: {error.strerror}")
        textfile.write(self.context, record, history, self.settings)

    def _tell_the_guard(self, observed: Observation) -> None:
        """Tell the memory guard, if one is installed, which containers are running now."""
        if self.context.check or observed.busy or observed.engine_error or not self.settings.every_s:
            return
        try:
            service_guard.write(self.context)
        except Exception as error:  # the Docker Engine may be restarting; the next check tries again
            self.context.note(f"cannot tell the guard which containers run: {engine_socket.silent(error)}")

    # -- beyond a single observation --------------------------------------------------------------------------------------

    def _speed(self, observed: Observation, judgement: Judgement, history: CheckHistory) -> Speed:
        """Measure the decode rate if it is due and nothing is wrong; otherwise return the last one."""
        last = history.last_speed
        every_s = self.settings.smoke_every_s
        due = self.scheduled and bool(every_s) and not 0 <= observed.time_s - (last.measured_s or 0.0) < every_s
        if (
            not (due or self.smoke)
            or judgement.state not in ("ok", "degraded")
            or observed.server.token != "made"
            or self.context.check
        ):
            return last
        found = self.measure(self.context, observed, self.settings.smoke_tokens)
        if found.tok_per_s is None:
            return replace(last, verdict=last.verdict if last.tok_per_s is not None else found.verdict)
        history.speed = dataclasses.asdict(found)
        return found

    def _break_loop(self, observed: Observation, judgement: Judgement, previous: CheckHistory) -> Judgement:
        """Stop a crash loop immediately, unless a run is in progress on the host."""
        if not observed.loop or self.context.check:
            return judgement
        name = observed.container.name
        who = history.who(self.context) or heal.WHO
        owner = lock.Owner("stopping a crash loop", who, self.context.run_id, os.getpid(), time.time())
        try:
            with lock.held(self.context.state, owner, host=self.settings.host or "the host"):
                crash_loop.break_loop(self.context, name, observed.loop, who)
        except SparkwrightError as error:
            self.context.note(f"could not stop the crash loop of {name}: {error.message}")
            return judgement
        since = str(good_states.last(self.context.state).get("since", ""))
        previous.broken = {"id": observed.container.id, "why": observed.loop, "since": since}
        return replace(judgement, why=f"{judgement.why}: stopped, restart policy set to no")


def _with_own(observed: Observation, record: Record, prober: Prober) -> dict[str, float | None]:
    """Return the server's counters after the check's own tokens, so that they are not counted as traffic."""
    http, own = prober.http, 1 if observed.server.token == "made" else 0
    generated, heartbeat = observed.server.generated_tokens, observed.heartbeat
    measured = generated is not None and record.speed.measured_s == observed.time_s
    if measured or (own and http.apart):
        now = http_probe.read_counters(http, observed.server.url, prober.key)[0]
        generated, heartbeat, own = now.get(roles.GENERATED), now.get(roles.HEARTBEAT), 0
    after = (None if item is None else item + own for item in (generated, heartbeat))
    return dict(zip(("generated", "heartbeat") if http.apart else ("generated",), after, strict=False))


def _served(observed: Observation, history: CheckHistory) -> float | None:
    """Return the tokens per second of all streams since the previous check, if the server was not restarted."""
    last, now = history.counted, observed.server.generated_tokens
    if now is None or last.get("start") != start_of(observed.container) or last.get("generated") is None:
        return None
    seconds = observed.time_s - float(last["time_s"])
    return round((now - float(last["generated"])) / seconds, 2) if seconds > 0 else None


def _who_works(context: Context) -> str:
    """Describe the run that holds the host's lock; empty if there is none, or if it is this run."""
    owner, alive = lock.inspect(context.state)
    return str(owner) if owner is not None and alive and owner.run != context.run_id else ""


def _cpu_s() -> float:
    """Return the CPU time of this process and of the programs that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system
