from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api, tasks
from sparkwright.engines import prefix as prefix_verdict
from sparkwright.engines.engine import Engine
from sparkwright.engines.http import Http
from sparkwright.engines.model import architecture
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host import evidence
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.runs import lock
from sparkwright.measure import asker, http_probe, stream
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg

#: tokens of the chat template and the question, beside the prefix
MARGIN_TOKENS = 256
TOKENS_A_WORD = 1.3
MORE = 0.01


class PrefixCache(Module["PrefixCache.Args"]):
    """A long prefix that was seen before is not computed again.

    Three requests share a fresh prefix of more than two blocks of the engine's cache; the server's own counters and
    the time to the first token say whether it was found. Why it can be zero is told: turned off, a prefix shorter
    than a block, a recurrent hybrid on an engine that keeps few of its states (vllm issue 36493), and what helps on
    this version.

    Zero hits fail only where the flags ask for prefix caching; without counters nothing is known. Requests of others make it
    inconclusive (exit 4).

    Returns: verdict (hits, few hits, no hits, off, unknown), hit_share, block_tokens, prefix_tokens, sightings (ttft_s,
    prompt_tokens, queries, hits).
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        container: str = arg("whose log tells the block's size; empty: only /metrics is asked", default="")
        model_dir: str = arg("the model's folder, for its kind; empty: only /metrics is asked", default="")
        flags: dict[str, Any] = arg("the engine's flags, under their own names", default_factory=dict)
        timeout_s: float = arg("how long one request may take, seconds", default=60.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        engine = container_labels.engine_at(context, args.base_url)
        if other := tasks.aside(engine.http):
            return Result(msg=f"no prefix cache test: {other}", data={"verdict": verdicts.ASIDE})
        try:
            with lock.alone(context.state, context.run_id, "a prefix cache test", note=context.note):
                return self._tried(engine, args, context)
        except Inconclusive as error:
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix)

    def _tried(self, engine: Engine, args: Args, context: Context) -> Result:
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        http = engine.http
        counters, cache = http_probe.read_counters(http, args.base_url, key)
        answer = _settings(http, args, key)
        if answer.get("prefix_caching") is False or engine.prefix_cache.is_off(cache):
            return _result(prefix_verdict.off(engine), engine, args, {})
        if roles.PREFIX_QUERIES not in counters:
            return _result(prefix_verdict.judge_verdict(engine, [], 0, 1, cache, None), engine, args, {})
        state = evidence.log(context, args.container)
        from_log = state.value("block_size") if state else None
        config = evidence.model_config(context.machine.expand(args.model_dir)) if args.model_dir else {}
        hybrid = bool(config) and architecture.classify(config).kind == "recurrent"
        reported = max(answer.get("block_size") or from_log or 0, engine.prefix_cache.block_tokens(cache))
        block = reported or http.prefix_block
        block = max(block, http.recurrent_block) if hybrid else block
        words = prefix_verdict.wanted_tokens(block)
        room = _room(http, args, key)
        data: dict[str, Any] = {"block_tokens": block, "prefix_tokens": words}
        if room is not None and words * TOKENS_A_WORD + MARGIN_TOKENS > room:
            message = f"two blocks of {block} tokens do not fit into its context of {room}"
            judged = prefix_verdict.Judged("unknown", f"{message}: most prompts cannot hit the cache")
            return _result(judged, engine, args, data)
        try:
            sightings = asker.sight_prefix(
                http,
                args.base_url,
                args.model,
                words,
                lambda: http_probe.read_counters(http, args.base_url, key)[0],
                api_key=key,
                timeout_s=args.timeout_s,
                progress=lambda done, total: context.progress(done, total, text="sending the prefix"),
            )
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the check was interrupted: {error}.", data={**data, "verdict": "broken"})
        data["sightings"] = [asdict(sighting) for sighting in sightings]
        if foreign := _foreign(sightings):
            fix = "Try again when the server is idle."
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=foreign, fix=fix, data=data)
        version = engine.advice.version(http_probe.version(http, args.base_url))
        return _result(
            prefix_verdict.judge_verdict(engine, sightings, words, block, cache, version, hybrid=hybrid),
            engine,
            args,
            data,
        )


def _settings(http: Http, args: PrefixCache.Args, key: str) -> Mapping[str, Any]:
    """Return the settings that the server reports; empty if its engine has no endpoint for them, or it reports none."""
    if not http.settings:
        return {}
    return http.settings_of(http_probe.ask(args.base_url, http.settings, api_key=key).json())


def _room(http: Http, args: PrefixCache.Args, key: str) -> int | None:
    """Return the context length that the server reports."""
    answer = http_probe.ask(args.base_url, http.models, api_key=key)
    return openai_api.served(http, answer.json()).get(args.model) if answer.status == 200 else None


def _foreign(sightings: list[prefix_verdict.Sighting]) -> str:
    """Return a phrase about other clients' traffic during the check; empty if there was none."""
    looked_up = sum(sighting.queries or 0 for sighting in sightings)
    ours = sum(sighting.prompt_tokens for sighting in sightings)
    if ours and looked_up > ours * (1 + MORE):
        return f"other traffic: {looked_up:.0f} tokens looked up in the prefix cache, only {ours} by this check."
    return ""


def _result(judged: prefix_verdict.Judged, engine: Engine, args: PrefixCache.Args, data: dict[str, Any]) -> Result:
    share = round(judged.share, 3) if judged.share is not None else None
    full = {**data, "verdict": judged.verdict, "hit_share": share}
    message = f"{judged.verdict}: {judged.sentence}" if judged.verdict != "hits" else judged.sentence
    if judged.verdict in ("no hits", "few hits", "off") and prefix_verdict.asked_for(engine, args.flags):
        fix = f"{judged.fix[:1].upper()}{judged.fix[1:]}." if judged.fix else ""
        return Result(failed=True, msg=f"{message}.", fix=fix, data=full)
    return Result(msg=message, data=full)
