"""Modules that repeat requests: to test the prefix cache, and to compare texts with those of the verified server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sparkwright import defaults, units
from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api, prefix_cache, tasks
from sparkwright.engines.engine import Engine
from sparkwright.engines.model import architecture
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host import evidence
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records import baselines
from sparkwright.host.records.baselines import MEMBERS_FIELD, Baselines, Reference, build_key
from sparkwright.host.runs import lock
from sparkwright.measure import http_probe, reference, server_client, server_counters, stream
from sparkwright.measure.http_probe import SHORT_TIMEOUT_S, Target
from sparkwright.measure.reference import AnswersEvaluation, Divergence, GeneratedText, Verdict
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg

#: upper bound on the tokens of the chat template and the question
MARGIN_TOKENS = 256
TOKENS_PER_WORD = 1.3
#: tokens of other clients that the counters may include, as a share of this check's tokens
MAX_FOREIGN_SHARE = 0.01

MAX_QUOTED_CHARS = 120
LIKELY_CAUSES = "wrong weights, a broken kernel or another chat template"
ANY_ANSWERS_FIX = "If the model is meant to answer like this: `expect: {answers: any}` in the recipe."
NEW_BASELINE_FIX = "If the new text is right: `invoke verify --new-baseline`."


class PrefixCache(Module["PrefixCache.Args"]):
    """Check that the prefix cache works: a repeated long prefix is not computed again.

    Three requests share a fresh prefix of more than two cache blocks. The server's counters and the time to the first token
    show the hits. Without hits, the message contains the reason (caching is off, the prefix is shorter than a block, or the
    model is a recurrent hybrid on an engine that keeps few of its states, vllm issue 36493) and the fix for this version.

    The check fails without hits only if the flags enable prefix caching; without counters the result is unknown. Other
    traffic makes it inconclusive (exit code 4).

    Returns: verdict (hits, few hits, no hits, off, unknown, broken), hit_share, block_tokens, prefix_tokens, sightings (of each
    request: ttft_s, prompt_tokens, queries, hits).
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        container: str = arg("container whose log has the block size; empty: use only /metrics", default="")
        model_dir: str = arg("the model's folder, to determine its kind; empty: use only /metrics", default="")
        flags: dict[str, Any] = arg("the engine's flags, under their own names", default_factory=dict)
        timeout_s: float = arg("time limit for one request, seconds", default=60.0)
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
        target = Target(http, args.base_url, args.model, key, args.timeout_s)
        counters, cache_settings = server_counters.read_counters(target)
        server_settings = _query_settings(target)
        if server_settings.get("prefix_caching") is False or engine.prefix_cache.is_off(cache_settings):
            return _build_result(prefix_cache.off_verdict(engine.name), engine, args, {})
        if engine_http.PREFIX_QUERIES not in counters:
            evaluation = prefix_cache.evaluate_prefix_cache(
                engine.name, engine.prefix_cache, [], 0, 1, cache_settings, None
            )
            return _build_result(evaluation, engine, args, {})
        config = evidence.read_model_config(context.machine.expand(args.model_dir)) if args.model_dir else {}
        is_hybrid = bool(config) and architecture.classify(config).kind == "recurrent"
        state = evidence.read_engine_state(context, args.container)
        logged_block_tokens = state.value("block_size") if state else None
        block_tokens = max(
            server_settings.get("block_size") or logged_block_tokens or 0,
            engine.prefix_cache.block_tokens(cache_settings),
        )
        block_tokens = max(block_tokens or http.prefix_block_tokens, http.recurrent_block_tokens if is_hybrid else 0)
        prefix_word_count = prefix_cache.prefix_length_tokens(block_tokens)  # a word has at least one token
        context_tokens = _query_context_length(target)
        data: dict[str, Any] = {"block_tokens": block_tokens, "prefix_tokens": prefix_word_count}
        if context_tokens is not None and prefix_word_count * TOKENS_PER_WORD + MARGIN_TOKENS > context_tokens:
            message = f"two blocks of {block_tokens} tokens do not fit into its context of {context_tokens}"
            evaluation = prefix_cache.PrefixCacheVerdict("unknown", f"{message}: most prompts cannot hit the cache")
            return _build_result(evaluation, engine, args, data)
        try:
            measurements = server_client.measure_prefix_reuse(
                target,
                prefix_word_count,
                progress=lambda done, total: context.progress(done, total, text="sending the prefix"),
            )
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the check was interrupted: {error}.", data={**data, "verdict": "broken"})
        data["sightings"] = [asdict(measurement) for measurement in measurements]
        if traffic := _describe_other_traffic(measurements):
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=traffic, fix=server_counters.IDLE_FIX, data=data)
        version = engine.advice.version(http_probe.query_version(target))
        evaluation = prefix_cache.evaluate_prefix_cache(
            engine.name,
            engine.prefix_cache,
            measurements,
            prefix_word_count,
            block_tokens,
            cache_settings,
            version,
            hybrid=is_hybrid,
        )
        return _build_result(evaluation, engine, args, data)


def _query_settings(target: Target) -> Mapping[str, Any]:
    """Return the settings that the server reports; empty if its engine has no endpoint for them."""
    path = target.http.settings_path
    return target.http.parse_settings(target.send(path, timeout_s=SHORT_TIMEOUT_S).json()) if path else {}


def _query_context_length(target: Target) -> int | None:
    """Return the context length that the server reports; None if unknown."""
    answer = target.send(target.http.models_path, timeout_s=SHORT_TIMEOUT_S)
    return openai_api.parse_models(target.http, answer.json()).get(target.model) if answer.status == 200 else None


def _describe_other_traffic(measurements: list[prefix_cache.PrefixMeasurement]) -> str:
    """Describe other clients' traffic during the check; empty if there was none."""
    queried_tokens = sum(measurement.queries or 0 for measurement in measurements)
    sent_tokens = sum(measurement.prompt_tokens for measurement in measurements)
    if sent_tokens and queried_tokens > sent_tokens * (1 + MAX_FOREIGN_SHARE):
        return f"other traffic: {queried_tokens:.0f} tokens looked up in the prefix cache, only {sent_tokens} by this check."
    return ""


def _build_result(
    evaluation: prefix_cache.PrefixCacheVerdict, engine: Engine, args: PrefixCache.Args, data: dict[str, Any]
) -> Result:
    verdict, fix = evaluation.verdict, evaluation.fix
    share = round(evaluation.share, 3) if evaluation.share is not None else None
    data = {**data, "verdict": verdict, "hit_share": share}
    message = f"{verdict}: {evaluation.sentence}" if verdict != "hits" else evaluation.sentence
    is_requested = prefix_cache.is_requested(engine.name, engine.flags.normalize(args.flags))
    if verdict in ("no hits", "few hits", "off") and is_requested:
        fix = f"{fix[:1].upper()}{fix[1:]}." if fix else ""
        return Result(failed=True, msg=f"{message}.", fix=fix, data=data)
    return Result(msg=message, data=data)


class ReferenceText(Module["ReferenceText.Args"]):
    """Check that the server generates the same text as when it was verified with the same image, model and arguments.

    Three fixed prompts are decoded greedily, 32 tokens each; a cluster also gets a prompt of about 2,000 tokens if its
    context is long enough. The first texts of a key (host, model, image digest, arguments and environment, as for the
    throughput baseline, but not the other members of a cluster) become its reference. Later texts are compared with the
    reference; only `new_baseline` replaces it. A divergence at a near-tie (two tokens less than 0.25 nats apart) is ignored,
    because batches, caches and kernels round differently.

    If all texts diverge, each without a near-tie or within its first 8 tokens, it counts as another model and the check
    fails. Any other divergence that is not a near-tie, or of all texts, is inconclusive: the run continues and exits with
    code 4. A server that is too busy to answer in time is inconclusive too.

    Before texts become the reference, they are checked for signs of a broken model (a loop, few words, empty content,
    control tokens, one answer to everything), and twelve questions with one correct answer each are asked (sums, capitals,
    an order, a word to repeat, a fact within about 2,000 tokens, twice). Garbage fails; doubtful texts are reported and not
    saved.

    Each adapter has its own reference. Its first texts are saved without the questions, because an adapter for one purpose
    may be unable to answer them. Texts identical to the model's are reported, because the adapter may not be applied.

    Returns: verdict (same, another, doubtful, new reference, garbage, not compared, inconclusive, error), texts, reference,
    partings (the divergences: prompt, token, char, gap in nats, tied), evidence; adapters (the same for each, by name).
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        adapters: list[str] = arg(
            "names of adapters in requests, each with its own reference text", default_factory=list
        )
        baseline_key: dict[str, Any] = arg(
            "identifies comparable texts: image, model, command, env; empty: no comparison", default_factory=dict
        )
        record: bool = arg("save the texts if there is no reference; only for a verified server", default=True)
        new_baseline: bool = arg("save the texts as the new reference instead of comparing them", default=False)
        answers: Literal["judged", "any"] = arg(
            "judged: check answers to simple questions before the texts are saved; any: save the texts unchecked",
            default="judged",
        )
        api_key_secret: str = server_key.secret_arg()
        timeout_s: float = arg("time limit for the text of one prompt, seconds", default=defaults.TOKEN_TIMEOUT_S)

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
        """Return the result for the texts of one served name."""
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        http = container_labels.engine_at(context, args.base_url).http
        if reason := tasks.reason_not_generating(http):
            return Result(msg=f"no reference text: {reason}", data={"verdict": verdicts.NOT_REQUESTED})
        is_cluster = MEMBERS_FIELD in args.baseline_key
        target = Target(http, args.base_url, args.model, key, args.timeout_s)
        try:
            texts = reference.query_texts(target, with_long_prompt=is_cluster)
        except reference.Unanswered as error:
            return _unanswered_result(error)
        key_fields = {name: value for name, value in args.baseline_key.items() if name != MEMBERS_FIELD}
        baseline_name = build_key(key_fields, context.machine, http)
        stored_reference = None if args.new_baseline else baselines.read_reference(context.state, baseline_name)
        if stored_reference is not None:
            return compare_texts(stored_reference, texts)
        data = {"verdict": "new reference", "texts": [text.text for text in texts]}
        if context.check or not (args.record or args.new_baseline):
            msg = "no reference text for this image, model and arguments yet; one is saved once all checks pass"
            return Result(msg=msg, data={**data, "verdict": "not compared"})
        summary = _format_prompt_count(texts)
        if args.answers == "judged":
            try:
                evaluation = self._evaluate(target, context, texts)
            except reference.Unanswered as error:
                return _unanswered_result(error)
            if evaluation.verdict != "sane":
                if evaluation.verdict == "garbage":
                    Baselines(context.state).remove(baseline_name)
                return _not_recorded_result(evaluation, container_labels.engine_at(context, args.base_url), data)
            summary = evaluation.sentence
        baselines.write_reference(context.state, baseline_name, texts)
        return Result(msg=f"reference text recorded ({summary})", data=data)

    def _evaluate(self, target: Target, context: Context, texts: Sequence[GeneratedText]) -> AnswersEvaluation:
        """Evaluate the texts and the answers. The longest question is asked twice, the second time with a cached prefix."""
        answers: list[str] = []
        for question in (*reference.QUESTIONS, reference.NEEDLE_QUESTION):
            context.progress(len(answers), len(reference.QUESTIONS) + 1, unit="questions", text="checking answers")
            answers.append(reference.query_answer(target, question.prompt))
        evaluation = reference.evaluate_answers(answers[:-1], [text.text for text in texts])
        return reference.evaluate_cached_answer(evaluation, answers[-2], answers[-1])


def _merge_adapters(model_result: Result, adapter_results: Mapping[str, Result]) -> Result:
    """Return the model's result with those of its adapters. It fails, or is inconclusive, if any of them is."""
    adapter_data = {name: result.data for name, result in adapter_results.items()}
    merged_result = replace(model_result, data={**model_result.data, "adapters": adapter_data})
    for name, result in adapter_results.items():
        is_same = result.data.get("texts") == model_result.data["texts"]
        doubt = ", identical to the text without it: is it applied?" if is_same else ""
        merged_result.msg += f"; {name}: {result.msg}{doubt}"
        merged_result.failed |= result.failed
        merged_result.exit = merged_result.exit or result.exit or (Exit.INCONCLUSIVE if is_same else None)
        merged_result.fix = merged_result.fix or result.fix
    return merged_result


def compare_texts(stored_reference: Reference, texts: Sequence[GeneratedText]) -> Result:
    """Return the result of comparing generated texts with the reference. Pure."""
    verdict, divergences = reference.compare_texts(stored_reference.texts, texts)
    tied_count = sum(divergence.tied for divergence in divergences)
    tie_note = f"; {tied_count} of {len(texts)} diverged at a near-tie" if tied_count else ""
    data = _result_data(verdict, stored_reference, texts, divergences)
    if verdict == "same":
        return Result(msg=f"generates its reference text ({_format_prompt_count(texts)}{tie_note})", data=data)
    reference_time = units.format_time(stored_reference.since, units.MINUTE_FORMAT)
    if verdict == "another":
        msg = (
            f"the text differs from that of {reference_time} with the same image, model and arguments: {LIKELY_CAUSES}."
        )
        return Result(failed=True, msg=msg, fix=NEW_BASELINE_FIX, data=data)
    difference = f"{len(divergences)} of {len(texts)} reference texts differ from those of {reference_time}"
    msg = f"{difference}{tie_note}: inconclusive; the cause is rounding, or {LIKELY_CAUSES}."
    return Result(msg=msg, fix=NEW_BASELINE_FIX, exit=Exit.INCONCLUSIVE, data=data)


def _not_recorded_result(evaluation: AnswersEvaluation, engine: Engine, data: dict[str, Any]) -> Result:
    """Return the result for garbage or doubtful texts, which do not become the reference."""
    data = {**data, "verdict": evaluation.verdict, "evidence": list(evaluation.evidence)}
    if evaluation.verdict == "garbage":
        cause = engine.probe_flags.causes.get("garbage", "") or LIKELY_CAUSES
        return Result(failed=True, msg=f"{evaluation.sentence}.", fix=f"Likely cause: {cause}.", data=data)
    msg = f"{evaluation.sentence}; no reference text recorded."
    return Result(msg=msg, fix=ANY_ANSWERS_FIX, exit=Exit.INCONCLUSIVE, data=data)


def _result_data(
    verdict: Verdict, stored_reference: Reference, texts: Sequence[GeneratedText], divergences: list[Divergence]
) -> dict[str, Any]:
    rows, evidence_lines = [], []
    for divergence in divergences:
        gap = None if divergence.gap is None or divergence.gap == float("inf") else round(divergence.gap, 3)
        row = {"prompt": divergence.prompt, "token": divergence.token or None, "char": divergence.char}
        rows.append({**row, "gap": gap, "tied": divergence.tied})
        evidence_lines += [
            divergence.sentence,
            f"  reference: {divergence.earlier_text[:MAX_QUOTED_CHARS]!r}",
            f"  now:       {divergence.current_text[:MAX_QUOTED_CHARS]!r}",
        ]
    return {
        "verdict": verdict,
        "texts": [text.text for text in texts],
        "reference": [text.text for text in stored_reference.texts],
        "partings": rows,
        "evidence": evidence_lines if verdict != "same" else [],
    }


def _unanswered_result(error: reference.Unanswered) -> Result:
    msg = f"the reference text was not generated: {error}."
    if error.timed_out:
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data={"verdict": "inconclusive"})
    return Result(failed=True, msg=msg, data={"verdict": "error"})


def _format_prompt_count(texts: Sequence[GeneratedText]) -> str:
    return f"{len(texts)} prompts"
