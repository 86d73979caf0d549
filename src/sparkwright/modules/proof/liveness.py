"""Modules that check whether a server is alive, generates, and is still the same container."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.engines import openai_api, tasks
from sparkwright.engines.engine import get_engine
from sparkwright.engines.http import GENERATE, HEARTBEAT, SET_KEY_FIX, Http
from sparkwright.errors import Exit, Inconclusive, Refused
from sparkwright.host.containers import container_labels, containers, ownership, server_key
from sparkwright.host.containers.inspection import describe_status
from sparkwright.host.containers.running_server import start_identity
from sparkwright.host.module import Context, Module
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import http_probe, server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import format_count

POLL_S = 0.2
OTHER_CLIENTS_WATCH_S = 2.0
#: verdicts of `verify_health` that another start would not change
LASTING_VERDICTS = ("unauthorized", "wrong name")

CRASH_WAIT_S = 2.0

SETTLE_TIMEOUT_S = 10.0
SAME_SERVER_POLL_S = 0.1


class Liveness(Module["Liveness.Args"]):
    """Check that the server generates a token, or report that it needs a restart. Changes nothing.

    A server needs a restart if its container is not running or was restarted by Docker in the meantime, if it has
    stopped answering, or if /health is fine but it generates nothing. A starting server gets twice the duration of
    its last measured start, and at least 30 s; check mode does not wait. If it generates for other clients but not for this
    check, its queue is long: the run exits with code 4.

    Returns: silent (a restart is needed), serves (it generated a token), why, version. Fails if it answers but cannot be
    checked, because the key is unknown here or the served name differs. Refused if it needs a restart and sparkwright did
    not create it.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name; empty: the first one that the server lists", default="")
        ready_s: float = arg(
            "time limit of a start if none has been measured, seconds", default=defaults.READY_TIMEOUT_S
        )
        timeout_s: float = arg("time limit for the token, seconds", default=defaults.TOKEN_TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        result = self._evaluate(args, context)
        container = containers.inspect(context.docker(), args.name) if result.data.get("silent") else None
        if container is not None and not ownership.is_ours(context, container):
            fix = f"On the host: `docker restart {args.name}`, or `docker stop` and `docker rename` it."
            raise Refused(f"no answer; container {ownership.describe_holder(context, container)}.", fix=fix)
        return result

    def _evaluate(self, args: Args, context: Context) -> Result:
        health_args = VerifyHealth.Args(base_url=args.base_url, model=args.model, tokens=1, timeout_s=args.timeout_s)
        started_at, start_progress = "", ""
        while True:
            container = containers.inspect(context.docker(), args.name) or {}
            if reason := _explain_not_running(args.name, container, started_at):
                return _silent_result(reason)
            started_at, engine = str(container["State"]["StartedAt"]), container_labels.engine_of_container(container)
            health_result = VerifyHealth().check_server(health_args, context, engine.http)
            if not health_result.failed:
                return _serving_result(health_result, has_waited=bool(start_progress))
            verdict = health_result.data["verdict"]
            if verdict in LASTING_VERDICTS or 400 <= health_result.data.get("status", 0) < 500:
                return health_result
            start_progress = _describe_start(container, args, context) if verdict == "loading" else ""
            if not start_progress and verdict == "wedged" and _is_generating(engine.http, args, context):
                missing_answer = f"no {tasks.result_noun(engine.http)} within {args.timeout_s:g} s"
                other_activity = "works" if tasks.reason_not_generating(engine.http) else "generates"
                return _unknown_result(f"{missing_answer} while the server {other_activity} for other clients.")
            if not start_progress:
                return _silent_result(_describe_crash_loop(container) or health_result.msg)
            if context.check:
                return _unknown_result(f"{args.name} is {start_progress}; `deploy` waits for it.")
            context.progress(0, text=start_progress)
            time.sleep(POLL_S)


def _explain_not_running(name: str, container: dict[str, Any], started_at: str) -> str:
    """Return why the engine is not running, or was restarted; empty if it runs.

    Args:
        started_at: the container's StartedAt at the previous inspection; empty at the first inspection.
    """
    if not container:
        return f"there is no container {name}."
    state = container["State"]
    if state["Status"] != "running":
        return f"{name} {describe_status(state['Status'])} (exit code {state['ExitCode']})."
    return f"{name} exited and was restarted." if started_at not in ("", state["StartedAt"]) else ""


def _describe_crash_loop(container: dict[str, Any]) -> str:
    """Describe the container's restarts if it is in a crash loop; empty otherwise."""
    from sparkwright.health import snapshot
    from sparkwright.health.judging import ranks

    container_state, now_s = snapshot.parse_container(container, ""), time.time()
    return f"{ranks.describe_restarts(container_state, now_s)}." if ranks.is_crash_loop(container_state, now_s) else ""


def _describe_start(container: dict[str, Any], args: Liveness.Args, context: Context) -> str:
    """Describe the progress of the start; empty if the server was ready before, is in a crash loop or exceeds its limit."""
    from sparkwright.health import current_state, snapshot
    from sparkwright.health.judging import ranks
    from sparkwright.health.settings import Settings

    verified_state = verified_states.load_last(context.state)
    verified_state = verified_state if verified_state.container_id == container["Id"] else VerifiedState()
    container_state = snapshot.parse_container(container, "")
    if snapshot.is_verified_since_start(container_state, verified_state) or ranks.is_crash_loop(
        container_state, time.time()
    ):
        return ""
    started_s = container_state.started_s or 0.0
    limits = dataclasses.replace(Settings.load(context.state).limits, ready_s=args.ready_s)
    running_s, allowed_s = max(0.0, time.time() - started_s), current_state.start_limit_s(verified_state, limits)
    return f"starting for {running_s:.0f} s (up to {allowed_s:.0f} s)" if running_s <= allowed_s else ""


def _is_generating(http: Http, args: Liveness.Args, context: Context) -> bool:
    """Return True if the server generates tokens, for other clients, according to its counters."""
    key = server_key.find_probe_key(context, args.base_url, VerifyHealth.Args(args.base_url).api_key_secret)
    initial_count = server_counters.read_counters(Target(http, args.base_url, api_key=key))[0].get(HEARTBEAT)
    deadline_s = time.monotonic() + OTHER_CLIENTS_WATCH_S
    while initial_count is not None and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        current_count = server_counters.read_counters(Target(http, args.base_url, api_key=key))[0].get(HEARTBEAT)
        if current_count is not None and current_count > initial_count:
            return True
    return False


def _serving_result(health_result: Result, *, has_waited: bool) -> Result:
    data = {"silent": False, "serves": True, "why": "", "version": health_result.data["version"]}
    return Result(msg=f"{health_result.msg}, after its start" if has_waited else health_result.msg, data=data)


def _silent_result(reason: str) -> Result:
    change = Change("server", "does not answer", "restarted", reason)
    msg = f"the server does not answer and will be restarted: {reason.rstrip('.')}"
    return Result(msg=msg, diff=[change], data={"silent": True, "serves": False, "why": reason})


def _unknown_result(reason: str) -> Result:
    return Result(msg=reason, exit=Exit.INCONCLUSIVE, data={"silent": False, "serves": False, "why": reason})


class VerifyHealth(Module["VerifyHealth.Args"]):
    """Check /health, the served name in /v1/models, and that the server generates a token with non-null content.

    For a recipe with another `task` it must return a vector of numbers, or scores in the right order. Each adapter is
    checked in the same way, by its own name. A status code is not enough: /health of a wedged engine, or of an engine that
    crashes on its first request, is 200.

    Returns: verdict (ready, loading, wedged, dying, wrong name, unauthorized, no content, wrong answer, error), version (GET
    /version), token_s, models, max_model_len, thinks (it reasons although reasoning is disabled, like gpt-oss: clients get
    null content until the reasoning ends), status (of a refused request).
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name; empty: the first one that the server lists", default="")
        adapters: list[str] = arg("names of adapters in requests, which must generate too", default_factory=list)
        api_key_secret: str = server_key.secret_arg()
        tokens: int = arg("number of tokens to generate", default=8)
        engine: str = arg("the engine; empty: that of the container that publishes the port", default="")
        timeout_s: float = arg("time limit for generating them, seconds", default=defaults.TOKEN_TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        if args.engine:
            return self.check_server(args, context, get_engine(args.engine).http)
        return self.check_server(args, context, container_labels.engine_at(context, args.base_url).http)

    def check_server(self, args: Args, context: Context, http: Http) -> Result:
        """Check a server through the API of its engine."""
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        health = http_probe.send_request(args.base_url, http.health_path, timeout_s=http.health_timeout_s)
        if health.status != 200:
            return _loading_result(http, args.base_url, health)
        models = http_probe.send_request(args.base_url, http.models_path, api_key=key)
        context_lengths = openai_api.parse_models(http, models.json()) if models.status == 200 else {}
        if args.model and args.model not in context_lengths:
            message = f"the server does not serve {args.model!r}; it serves {', '.join(context_lengths) or 'none'}."
            return _failed_result("wrong name", message, fix="Check the served name in the recipe.")
        result = self._check_model(http, args, args.model or next(iter(context_lengths), ""), key, context_lengths)
        for name in () if result.failed else args.adapters:
            adapter_result = self._check_model(http, args, name, key, context_lengths)
            if adapter_result.failed:
                return dataclasses.replace(adapter_result, msg=f"adapter {name}: {adapter_result.msg}")
            result.msg += f"; {name}: {adapter_result.msg}"
        return result

    def _check_model(
        self, http: Http, args: Args, model: str, key: str, context_lengths: Mapping[str, int | None]
    ) -> Result:
        """Check one served name.

        Args:
            context_lengths: context length of each name that the server lists; None if unknown.
        """
        target = Target(http, args.base_url, model, key, args.timeout_s)
        version = http_probe.query_version(target)
        started_s = time.monotonic()
        answer = http_probe.request_tokens(target, args.tokens)
        token_s = time.monotonic() - started_s
        if answer.status != 200 or answer.failure:
            return self._no_token_result(http, args, answer)
        fields = {
            "version": version,
            "token_s": round(token_s, 3),
            "models": list(context_lengths),
            "max_model_len": context_lengths.get(model),
        }
        if http.task != GENERATE:
            return _proof_result(tasks.PROOFS[http.task].evaluate(answer.json()), token_s, fields)
        content, reasoning = openai_api.parse_answer(answer.json())
        if not content and not reasoning:
            return _failed_result("no content", "the response was 200 but contained no text.")
        data = {"verdict": "ready", **fields, "thinks": not content}
        reasoning_note = "" if content else ", all reasoning although it is disabled: content stays null until it ends"
        return Result(
            msg=f"generates: {format_count(args.tokens, 'token')} in {token_s:.2f} s{reasoning_note}", data=data
        )

    @staticmethod
    def _no_token_result(http: Http, args: Args, answer: http_probe.Response) -> Result:
        if answer.status == 401:
            return _failed_result(
                "unauthorized", "the server requires an API key that is not known here.", fix=SET_KEY_FIX
            )
        health_after = _query_health_after_failure(http, args.base_url)
        if answer.error == "timeout":
            health_answer = health_after.status or health_after.error
            message = (
                f"{http.health_path} answers {health_answer}, but no {tasks.result_noun(http)} arrived within "
                f"{args.timeout_s:g} s."
            )
            return _failed_result("wedged", message, fix="Only a restart helps: `invoke restart`.")
        if health_after.status != 200:
            current_health = f"{http.health_path} {health_after.status or health_after.error}"
            message = f"it crashed on the first request ({answer.status or answer.error}, {current_health})."
            return _failed_result("dying", message, fix="See `docker logs`.")
        refusal = _failed_result("error", f"the test request failed with {answer.status}: {answer.message()}")
        refusal.data["status"] = answer.status
        return refusal


def _proof_result(proof: tasks.ProofResult, token_s: float, fields: dict[str, Any]) -> Result:
    """Return the result of a request for an embedding or for scores."""
    if proof.problem:
        return _failed_result(
            "wrong answer" if proof.content else "no content", f"the response was 200 {proof.problem}."
        )
    return Result(
        msg=f"answers: {proof.content} in {token_s:.2f} s", data={"verdict": "ready", "thinks": False, **fields}
    )


def _query_health_after_failure(http: Http, base_url: str) -> http_probe.Response:
    """Return the response from /health after a failed request; a crashing engine needs up to CRASH_WAIT_S to report it."""
    deadline_s = time.monotonic() + CRASH_WAIT_S
    while True:
        answer = http_probe.send_request(base_url, http.health_path, timeout_s=http.health_timeout_s)
        if answer.status != 200 or time.monotonic() > deadline_s:
            return answer
        time.sleep(0.1)


def _loading_result(http: Http, base_url: str, health: http_probe.Response) -> Result:
    if health.status in http.loading_statuses:
        return _failed_result("loading", f"{http.health_path} answers {health.status}: {health.message()}")
    if health.status == 0:
        return _failed_result("loading", f"no answer from {base_url} ({health.error}).")
    return _failed_result("dying", f"{http.health_path} answers {health.status}: {health.message()}")


def _failed_result(verdict: str, msg: str, *, fix: str = "") -> Result:
    return Result(failed=True, msg=msg, fix=fix, data={"verdict": verdict})


class SameServer(Module["SameServer.Args"]):
    """Check that the container is still the one that `inspect_server` found, and was not restarted manually.

    A container that exited and was restarted by its restart policy counts as the same.

    Inconclusive (exit code 4) if it was replaced, removed or restarted in the meantime, because earlier checks may have
    tested another server.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000; empty for a worker of a cluster")
        start: dict[str, Any] = arg("its id, started and restarts, from `inspect_server`")

    def run(self, args: Args, context: Context) -> Result:
        replacement = _describe_replacement(args, context)
        if not replacement:
            return Result()
        raise Inconclusive(
            f"{args.name} was {replacement} during the checks: inconclusive.", fix="Run the command again."
        )


def _describe_replacement(args: SameServer.Args, context: Context) -> str:
    """Return "replaced", "removed", "restarted" or "".

    Waits up to SETTLE_TIMEOUT_S while the server does not answer, because it may be about to be replaced.
    """
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    http = container_labels.engine_at(context, args.base_url).http if args.base_url else None
    while True:
        # query before the inspection: a server that was started after the inspection could answer
        is_answering = (
            http is None
            or http_probe.send_request(args.base_url, http.health_path, timeout_s=http.health_timeout_s).status
        )
        is_settled = is_answering or time.monotonic() > deadline_s
        container = containers.inspect(context.docker(), args.name)
        current = start_identity(container) if container else {}
        if current.get("id") != args.start["id"]:
            return "replaced" if container else "removed"
        if current["started"] != args.start["started"] and current["restarts"] <= args.start["restarts"]:
            return "restarted"
        if is_settled:
            return ""
        time.sleep(SAME_SERVER_POLL_S)
