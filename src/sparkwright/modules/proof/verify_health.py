from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.engines import engine, openai_api, tasks
from sparkwright.engines import server_key as key_rules
from sparkwright.engines.engine import Engine
from sparkwright.engines.http import GENERATE, Http
from sparkwright.host.containers import engine_of, server_key
from sparkwright.host.module import Context, Module
from sparkwright.measure import http_probe, token_check
from sparkwright.protocol.result import Result, arg

DYING_S = 2.0


class VerifyHealth(Module["VerifyHealth.Args"]):
    """The server generates: /health, the served name in /v1/models, then a token whose content is not null; of a recipe with
    another `task` a vector of numbers, or scores in the right order.

    A status code proves nothing: a wedged engine answers 200, and one that crashes on its first request did so before.

    Returns: verdict (ready, loading, wedged, dying, wrong name), version (GET /version), token_s, models, max_model_len, thinks
    (it thought although asked not to, as gpt-oss does: clients get null content until it ends); status of a refused request.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name; empty: the first that the server names", default="")
        api_key_secret: str = server_key.secret_arg()
        tokens: int = arg("how many to generate", default=8)
        engine: str = arg("the engine that answers; empty: that of the container which publishes the port", default="")
        timeout_s: float = arg("how long they may take, seconds", default=defaults.TOKEN_S)

    def run(self, args: Args, context: Context) -> Result:
        return self.ask(args, context, _engine(args, context).http)

    def ask(self, args: Args, context: Context, http: Http) -> Result:
        """Check a server whose engine is known. http: the engine's API."""
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        health = http_probe.ask(args.base_url, http.health, timeout_s=http.health_s)
        if health.status != 200:
            return _loading(http, args.base_url, health)
        reported = http_probe.ask(args.base_url, http.models, api_key=key)
        served = openai_api.served(http, reported.json()) if reported.status == 200 else {}
        names = list(served)
        if args.model and args.model not in names:
            message = ", ".join(names) or "none"
            fix = "Check the served name in the recipe."
            return _failed("wrong name", f"the server does not serve {args.model!r}; it serves {message}.", fix=fix)
        version = http_probe.version(http, args.base_url, api_key=key)
        started_s = time.monotonic()
        model = args.model or next(iter(names), "")
        answer = token_check.ask(http, args.base_url, model, args.tokens, api_key=key, timeout_s=args.timeout_s)
        token_s = time.monotonic() - started_s
        if answer.status != 200 or answer.failure:
            return self._no_token(http, args, answer)
        if http.task != GENERATE:
            about = {
                "version": version,
                "token_s": round(token_s, 3),
                "models": names,
                "max_model_len": served.get(model),
            }
            return _judged(tasks.PROOFS[http.task].judge(answer.json()), token_s, about)
        content, thought = openai_api.spoken(answer.json())
        if not content and not thought:
            return _failed("no content", "the response was 200 without text.")
        data = {
            "verdict": "ready",
            "version": version,
            "token_s": round(token_s, 3),
            "models": names,
            "max_model_len": served.get(model),
            "thinks": not content,
        }
        words = "1 token" if args.tokens == 1 else f"{args.tokens} tokens"
        aside = "" if content else ", all of them reasoning although it is disabled: content stays null until it ends"
        return Result(msg=f"generates: {words} in {token_s:.2f} s{aside}", data=data)

    @staticmethod
    def _no_token(http: Http, args: Args, answer: http_probe.Answer) -> Result:
        if answer.status == 401:
            return _failed("unauthorized", "the server requires an API key that is not known here.", fix=key_rules.SET)
        after = _settled(http, args.base_url)
        if answer.error == "timeout":
            answers = after.status or after.error
            message = f"{http.health} answers {answers}, but no {tasks.noun(http)} arrived within {args.timeout_s:g} s."
            return _failed("wedged", message, fix="Only a restart helps: `invoke restart`.")
        if after.status != 200:
            now = f"{http.health} {after.status or after.error}"
            message = f"it crashed on the first request ({answer.status or answer.error}, {now})."
            return _failed("dying", message, fix="See `docker logs`.")
        refused = _failed("error", f"the test request failed with {answer.status}: {answer.message()}")
        refused.data["status"] = answer.status
        return refused


def _judged(found: tasks.Judged, token_s: float, about: dict[str, Any]) -> Result:
    """Return the result of a request for an embedding or for scores."""
    if found.why_not:
        return _failed("wrong answer" if found.holds else "no content", f"the response was 200 {found.why_not}.")
    return Result(msg=f"answers: {found.holds} in {token_s:.2f} s", data={"verdict": "ready", "thinks": False, **about})


def _settled(http: Http, base_url: str) -> http_probe.Answer:
    """Return the answer of /health a moment after a bad answer: an engine that fails takes a moment to report it."""
    deadline_s = time.monotonic() + DYING_S
    while True:
        answer = http_probe.ask(base_url, http.health, timeout_s=http.health_s)
        if answer.status != 200 or time.monotonic() > deadline_s:
            return answer
        time.sleep(0.1)


def _engine(args: VerifyHealth.Args, context: Context) -> Engine:
    return engine.of(args.engine) if args.engine else engine_of.at(context, args.base_url)


def _loading(http: Http, base_url: str, health: http_probe.Answer) -> Result:
    if health.status in http.loading:
        return _failed("loading", f"{http.health} answers {health.status}: {health.message()}")
    if health.status == 0:
        return _failed("loading", f"no answer from {base_url} ({health.error}).")
    return _failed("dying", f"{http.health} answers {health.status}: {health.message()}")


def _failed(verdict: str, msg: str, *, fix: str = "") -> Result:
    return Result(failed=True, msg=msg, fix=fix, data={"verdict": verdict})
