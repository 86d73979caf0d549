"""Proofs by a repeated request: its prefix comes from the cache, and its text is the one of the verified server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sparkwright import defaults, units
from sparkwright.engines import http as roles
from sparkwright.engines import openai_api, prefix_cache, tasks
from sparkwright.engines.engine import Engine
from sparkwright.engines.http import Http
from sparkwright.engines.model import architecture
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host import evidence
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records import baselines
from sparkwright.host.records.baselines import MEMBERS, Baselines, Reference, build_key
from sparkwright.host.runs import lock
from sparkwright.measure import http_probe, reference, server_client, server_counters, stream
from sparkwright.measure.reference import AnswersEvaluation, Divergence, GeneratedText, Verdict
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg

#: tokens of the chat template and the question, without the prefix
MARGIN_TOKENS = 256
TOKENS_PER_WORD = 1.3
MAX_FOREIGN_SHARE = 0.01


class PrefixCache(Module["PrefixCache.Args"]):
    """Check that a long prefix that was seen before is not computed again.

    Three requests share a fresh prefix of more than two blocks of the engine's cache; the server's counters and the time to
    the first token show whether it was found. If there are no hits, the message gives the reason: turned off, a prefix
    shorter than a block, a recurrent hybrid on an engine that keeps few of its states (vllm issue 36493), and what helps on
    this version.

    Zero hits fail only if the flags enable prefix caching; without counters the result is unknown. Requests of others make
    it inconclusive (exit code 4).

    Returns: verdict (hits, few hits, no hits, off, unknown), hit_share, block_tokens, prefix_tokens, sightings (ttft_s,
    prompt_tokens, queries, hits).
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        container: str = arg("container whose log has the block's size; empty: only /metrics is used", default="")
        model_dir: str = arg("the model's folder, to determine its kind; empty: only /metrics is used", default="")
        flags: dict[str, Any] = arg("the engine's flags, under their own names", default_factory=dict)
        timeout_s: float = arg("how long one request may take, seconds", default=60.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        engine = container_labels.engine_at(context, args.base_url)
        if reason := tasks.reason_not_generating(engine.http):
            return Result(msg=f"no prefix cache test: {reason}", data={"verdict": verdicts.NOT_REQUESTED})
        try:
            with lock.acquire_measurement(context.state, context.run_id, "a prefix cache test", note=context.note):
                return self._run_test(engine, args, context)
        except Inconclusive as error:
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix)

    def _run_test(self, engine: Engine, args: Args, context: Context) -> Result:
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        http = engine.http
        counters, cache = server_counters.read_counters(http, args.base_url, key)
        answer = _query_settings(http, args, key)
        if answer.get("prefix_caching") is False or engine.prefix_cache.is_off(cache):
            return _build_result(prefix_cache.off_verdict(engine.name), engine, args, {})
        if roles.PREFIX_QUERIES not in counters:
            judged = prefix_cache.evaluate_prefix_cache(engine.name, engine.prefix_cache, [], 0, 1, cache, None)
            return _build_result(judged, engine, args, {})
        state = evidence.read_engine_state(context, args.container)
        from_log = state.value("block_size") if state else None
        config = evidence.read_model_config(context.machine.expand(args.model_dir)) if args.model_dir else {}
        hybrid = bool(config) and architecture.classify(config).kind == "recurrent"
        reported = max(answer.get("block_size") or from_log or 0, engine.prefix_cache.block_tokens(cache))
        block = reported or http.prefix_block
        block = max(block, http.recurrent_block) if hybrid else block
        words = prefix_cache.prefix_length_tokens(block)
        context_tokens = _query_context_length(http, args, key)
        data: dict[str, Any] = {"block_tokens": block, "prefix_tokens": words}
        if context_tokens is not None and words * TOKENS_PER_WORD + MARGIN_TOKENS > context_tokens:
            message = f"two blocks of {block} tokens do not fit into its context of {context_tokens}"
            judged = prefix_cache.PrefixCacheVerdict("unknown", f"{message}: most prompts cannot hit the cache")
            return _build_result(judged, engine, args, data)
        try:
            sightings = server_client.measure_prefix_reuse(
                http,
                args.base_url,
                args.model,
                words,
                lambda: server_counters.read_counters(http, args.base_url, key)[0],
                api_key=key,
                timeout_s=args.timeout_s,
                progress=lambda done, total: context.progress(done, total, text="sending the prefix"),
            )
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the check was interrupted: {error}.", data={**data, "verdict": "broken"})
        data["sightings"] = [asdict(sighting) for sighting in sightings]
        if foreign := _describe_foreign_traffic(sightings):
            fix = "Try again when the server is idle."
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=foreign, fix=fix, data=data)
        version = engine.advice.version(http_probe.query_version(http, args.base_url))
        return _build_result(
            prefix_cache.evaluate_prefix_cache(
                engine.name, engine.prefix_cache, sightings, words, block, cache, version, hybrid=hybrid
            ),
            engine,
            args,
            data,
        )


def _query_settings(http: Http, args: PrefixCache.Args, key: str) -> Mapping[str, Any]:
    """Return the settings that the server reports; empty if its engine has no endpoint for them, or it reports none."""
    if not http.settings:
        return {}
    return http.settings_of(http_probe.send_request(args.base_url, http.settings, api_key=key).json())


def _query_context_length(http: Http, args: PrefixCache.Args, key: str) -> int | None:
    """Return the context length that the server reports."""
    answer = http_probe.send_request(args.base_url, http.models, api_key=key)
    return openai_api.parse_models(http, answer.json()).get(args.model) if answer.status == 200 else None


def _describe_foreign_traffic(sightings: list[prefix_cache.PrefixMeasurement]) -> str:
    """Return a phrase about other clients' traffic during the check; empty if there was none."""
    looked_up = sum(sighting.queries or 0 for sighting in sightings)
    ours = sum(sighting.prompt_tokens for sighting in sightings)
    if ours and looked_up > ours * (1 + MAX_FOREIGN_SHARE):
        return f"other traffic: {looked_up:.0f} tokens looked up in the prefix cache, only {ours} by this check."
    return ""


def _build_result(
    judged: prefix_cache.PrefixCacheVerdict, engine: Engine, args: PrefixCache.Args, data: dict[str, Any]
) -> Result:
    share = round(judged.share, 3) if judged.share is not None else None
    fields = {**data, "verdict": judged.verdict, "hit_share": share}
    message = f"{judged.verdict}: {judged.sentence}" if judged.verdict != "hits" else judged.sentence
    if judged.verdict in ("no hits", "few hits", "off") and prefix_cache.is_requested(
        engine.name, engine.flags.normalize(args.flags)
    ):
        fix = f"{judged.fix[:1].upper()}{judged.fix[1:]}." if judged.fix else ""
        return Result(failed=True, msg=f"{message}.", fix=fix, data=fields)
    return Result(msg=message, data=fields)


MAX_QUOTED_CHARS = 120
CAUSES = "wrong weights, a broken kernel or another chat template"
ANY_ANSWERS_FIX = "If the model is meant to answer so: `expect: {answers: any}` in the recipe."
NEW_BASELINE_FIX = "If the new text is right: `invoke verify --new-baseline`."


class ReferenceText(Module["ReferenceText.Args"]):
    """Check that the server generates the same text as when it was verified with the same image, model and arguments.

    Three fixed prompts, greedily decoded, 32 tokens each; a cluster gets a fourth of some 2,000 tokens, if its context has
    room for it. The first texts of a key (as for the throughput baseline: host, model, image digest, arguments, environment;
    not the other members of a cluster) are its reference; later ones are compared with it, and change it only with
    `new_baseline`. Texts that diverge at a near-tie (the two tokens less than 0.25 nats apart) count as the same, because
    batches, caches and kernels round differently.

    If all prompts diverge elsewhere, or within their first 8 tokens, it is another model: failed. If only some diverge
    elsewhere, or all diverge later, the result is inconclusive: the run continues and exits with code 4. A server that is
    too busy to answer in time is inconclusive too.

    Before texts become the reference they are judged on their own: twelve questions with one correct answer each (sums,
    capitals, an order, a word to repeat, a fact within some 2,000 tokens, twice), and signs that no working model shows (a
    loop, few words, an empty content, control tokens, one answer to everything). Garbage fails; doubtful texts are reported
    and not kept.

    Each adapter has its own reference, under its own name. Its first texts are kept without the questions, which an adapter
    for one purpose need not answer; texts that are identical to the model's own are reported, because the adapter may not be
    applied.

    Returns: verdict (same, another, doubtful, new reference, garbage, not compared, inconclusive), texts, reference,
    partings (prompt, token, char, gap in nats, tied), evidence; adapters: the same for each, by name.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        adapters: list[str] = arg(
            "names of adapters in requests, each with its own reference text", default_factory=list
        )
        baseline_key: dict[str, Any] = arg(
            "identifies comparable texts: image, model, command, env; empty: nothing is compared", default_factory=dict
        )
        record: bool = arg("keep the texts if there is no reference; only for a verified server", default=True)
        new_baseline: bool = arg("keep the texts as the new reference instead of comparing them", default=False)
        answers: Literal["judged", "any"] = arg(
            "judged: answers to simple questions are judged before the texts are kept; any: the texts are kept unchecked",
            default="judged",
        )
        api_key_secret: str = server_key.secret_arg()
        timeout_s: float = arg("how long the text of one prompt may take, seconds", default=defaults.TOKEN_TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        if not args.baseline_key:
            msg = "no reference text: the running server belongs to no recipe and was never verified"
            return Result(msg=msg, data={"verdict": "not compared"})
        result = self._compare_texts(args, context)
        if result.failed or not args.adapters or "texts" not in result.data:
            return result
        return _merge_adapters(result, {name: self._compare_adapter(args, context, name) for name in args.adapters})

    def _compare_adapter(self, args: Args, context: Context, name: str) -> Result:
        key = {**args.baseline_key, "adapter": name}
        return self._compare_texts(replace(args, model=name, baseline_key=key, answers="any"), context)

    def _compare_texts(self, args: Args, context: Context) -> Result:
        """Return the result of the texts under one name."""
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        http = container_labels.engine_at(context, args.base_url).http
        if reason := tasks.reason_not_generating(http):
            return Result(msg=f"no reference text: {reason}", data={"verdict": verdicts.NOT_REQUESTED})
        long = MEMBERS in args.baseline_key
        try:
            texts = reference.query_texts(
                http, args.base_url, args.model, api_key=key, timeout_s=args.timeout_s, long=long
            )
        except reference.Unanswered as error:
            return _unanswered_result(error)
        key_fields = {name: value for name, value in args.baseline_key.items() if name != MEMBERS}
        name = build_key(key_fields, context.machine, http)
        stored = None if args.new_baseline else baselines.read_reference(context.state, name)
        if stored is not None:
            return compare_texts(stored, texts)
        data = {"verdict": "new reference", "texts": [text.text for text in texts]}
        if not (args.record or args.new_baseline):
            msg = "no reference text of this image, model and arguments yet; one is kept once all checks pass"
            return Result(msg=msg, data={**data, "verdict": "not compared"})
        score = _format_prompt_count(texts)
        if args.answers == "judged":
            try:
                judged = self._evaluate(args, context, http, key, texts)
            except reference.Unanswered as error:
                return _unanswered_result(error)
            if judged.verdict != "sane":
                if judged.verdict == "garbage":
                    Baselines(context.state).remove(name)
                return _not_recorded_result(judged, container_labels.engine_at(context, args.base_url), data)
            score = judged.sentence
        baselines.write_reference(context.state, name, texts)
        return Result(msg=f"reference text recorded ({score})", data=data)

    def _evaluate(
        self, args: Args, context: Context, http: Http, key: str, texts: Sequence[GeneratedText]
    ) -> AnswersEvaluation:
        """Judge the texts, and answers to questions; the longest question is asked twice, new and from the prefix cache."""
        answers: list[str] = []
        for question in (*reference.QUESTIONS, reference.NEEDLE_QUESTION):
            context.progress(len(answers), len(reference.QUESTIONS) + 1, unit="questions", text="asking")
            answers.append(
                reference.query_answer(
                    http, args.base_url, args.model, question.prompt, api_key=key, timeout_s=args.timeout_s
                )
            )
        judged = reference.evaluate_answers(answers[:-1], [text.text for text in texts])
        return reference.evaluate_cached_answer(judged, answers[-2], answers[-1])


def _merge_adapters(model_result: Result, adapters: Mapping[str, Result]) -> Result:
    """Return the model's result with those of its adapters: the worst of them all counts."""
    merged = replace(
        model_result, data={**model_result.data, "adapters": {name: result.data for name, result in adapters.items()}}
    )
    for name, result in adapters.items():
        same = result.data.get("texts") == model_result.data["texts"]
        aside = ", word for word the text without it: is it applied?" if same else ""
        merged.msg += f"; {name}: {result.msg}{aside}"
        merged.failed |= result.failed
        merged.exit = merged.exit or result.exit or (Exit.INCONCLUSIVE if same else None)
        merged.fix = merged.fix or result.fix
    return merged


def compare_texts(stored: Reference, texts: Sequence[GeneratedText]) -> Result:
    """Return the result of comparing generated texts with the reference. Pure."""
    verdict, partings = reference.compare_texts(stored.texts, texts)
    tied = sum(parting.tied for parting in partings)
    aside = f"; {tied} of {len(texts)} parted at a near-tie" if tied else ""
    data = _result_data(verdict, stored, texts, partings)
    if verdict == "same":
        return Result(msg=f"generates its reference text ({_format_prompt_count(texts)}{aside})", data=data)
    when = units.format_time(stored.since, units.MINUTE_FORMAT)
    if verdict == "another":
        msg = f"another text than on {when} with the same image, model and arguments: {CAUSES}."
        return Result(failed=True, msg=msg, fix=NEW_BASELINE_FIX, data=data)
    difference = f"{len(partings)} of {len(texts)} reference texts differ from those of {when}"
    msg = f"{difference}{aside}: rounding, or {CAUSES}; not certain either way."
    return Result(msg=msg, fix=NEW_BASELINE_FIX, exit=Exit.INCONCLUSIVE, data=data)


def _not_recorded_result(judged: AnswersEvaluation, engine: Engine, data: dict[str, Any]) -> Result:
    """Return the result for first answers that are not fit for a reference."""
    data = {**data, "verdict": judged.verdict, "evidence": list(judged.evidence)}
    if judged.verdict == "garbage":
        cause = engine.probe_flags.causes.get("garbage", "")
        fix = f"Likely cause: {cause}." if cause else f"Likely cause: {CAUSES}."
        return Result(failed=True, msg=f"{judged.sentence}.", fix=fix, data=data)
    msg = f"{judged.sentence}; no reference text recorded."
    return Result(msg=msg, fix=ANY_ANSWERS_FIX, exit=Exit.INCONCLUSIVE, data=data)


def _result_data(
    verdict: Verdict, stored: Reference, texts: Sequence[GeneratedText], partings: list[Divergence]
) -> dict[str, Any]:
    """Return the data to register, with both texts."""
    rows = [
        {
            "prompt": parting.prompt,
            "token": parting.token or None,
            "char": parting.char,
            "gap": None if parting.gap is None or parting.gap == float("inf") else round(parting.gap, 3),
            "tied": parting.tied,
        }
        for parting in partings
    ]
    compared_texts = {
        "texts": [text.text for text in texts],
        "reference": [text.text for text in stored.texts],
        "partings": rows,
    }
    evidence = (
        [line for parting in partings for line in (parting.sentence, *_quote_texts(parting))]
        if verdict != "same"
        else []
    )
    return {"verdict": verdict, **compared_texts, "evidence": evidence}


def _quote_texts(parting: Divergence) -> list[str]:
    return [f"  reference: {parting.before[:MAX_QUOTED_CHARS]!r}", f"  now:       {parting.now[:MAX_QUOTED_CHARS]!r}"]


def _unanswered_result(error: reference.Unanswered) -> Result:
    msg = f"the reference text was not generated: {error}."
    if error.slow:
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data={"verdict": "inconclusive"})
    return Result(failed=True, msg=msg, data={"verdict": "error"})


def _format_prompt_count(texts: Sequence[GeneratedText]) -> str:
    return f"{len(texts)} prompts"
