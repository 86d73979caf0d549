from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sparkwright import defaults, units
from sparkwright.engines import tasks
from sparkwright.engines.engine import Engine
from sparkwright.engines.http import Http
from sparkwright.errors import Exit
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records import baselines
from sparkwright.host.records.baselines import MEMBERS, Baselines, Reference, key_of
from sparkwright.measure import reference
from sparkwright.measure.reference import Judged, Parting, Text, Verdict
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg

SHOWN_CHARS = 120
CAUSES = "wrong weights, a broken kernel or another chat template"
ANY = "If the model is meant to answer so: `expect: {answers: any}` in the recipe."
ACCEPT = "If the new text is right: `invoke verify --new-baseline`."


class ReferenceText(Module["ReferenceText.Args"]):
    """The server generates the text that it generated when it was verified with the same image, model and arguments.

    Three fixed prompts, greedily decoded, 32 tokens each; a cluster gets a fourth of some 2,000 tokens, where its context has
    room for it. The first texts of a key (as for the throughput baseline: host, model, image digest, arguments, environment; not
    the other members of a cluster) are its reference; later ones are compared with it, and never change it unless `new_baseline`
    asks for that. Texts that part at a near-tie (the two tokens less than 0.25 nats apart) are the same: batches, caches and
    kernels round differently.

    When every prompt parts elsewhere, or within its first 8 tokens, it is another model: failed. When only some part elsewhere,
    or every prompt parts later, that is inconclusive: the run goes on and ends with 4. So does one whose server is too busy to
    answer in time.

    Before texts become the reference they are judged on their own: twelve questions with one right answer each (sums, capitals,
    an order, a word to repeat, a fact within some 2,000 tokens, twice), and signs that no working model writes (a loop, few
    words, an empty content, control tokens, one answer to all). Garbage fails; what is doubtful is reported and not kept.

    Each adapter has a reference of its own, under its own name. Its first texts are kept without the questions, which an adapter
    for one purpose need not answer; texts that are the model's own, word for word, are reported: it may not be applied.

    Returns: verdict (same, another, doubtful, new reference, garbage, not compared, inconclusive), texts, reference, partings
    (prompt, token, char, gap in nats, tied), evidence; adapters: the same of each, by name.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        adapters: list[str] = arg("names of adapters in requests, each with a text of its own", default_factory=list)
        baseline_key: dict[str, Any] = arg(
            "what makes texts comparable: image, model, command, env; empty: nothing is compared", default_factory=dict
        )
        record: bool = arg("keep the texts when there is no reference: only of a server that is verified", default=True)
        new_baseline: bool = arg("keep the texts as the new reference instead of comparing them", default=False)
        answers: Literal["judged", "any"] = arg(
            "judged: answers to simple questions are judged before the texts are kept; any: whatever it says is kept",
            default="judged",
        )
        api_key_secret: str = server_key.secret_arg()
        timeout_s: float = arg("how long the text of one prompt may take, seconds", default=defaults.TOKEN_S)

    def run(self, args: Args, context: Context) -> Result:
        if not args.baseline_key:
            msg = "no reference text: the running server belongs to no recipe and was never verified"
            return Result(msg=msg, data={"verdict": "not compared"})
        found = self._compared(args, context)
        if found.failed or not args.adapters or "texts" not in found.data:
            return found
        return _with_adapters(found, {name: self._adapter(args, context, name) for name in args.adapters})

    def _adapter(self, args: Args, context: Context, name: str) -> Result:
        about = {**args.baseline_key, "adapter": name}
        return self._compared(replace(args, model=name, baseline_key=about, answers="any"), context)

    def _compared(self, args: Args, context: Context) -> Result:
        """Return the result of the texts under one name."""
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        http = container_labels.engine_at(context, args.base_url).http
        if other := tasks.aside(http):
            return Result(msg=f"no reference text: {other}", data={"verdict": verdicts.ASIDE})
        long = MEMBERS in args.baseline_key
        try:
            texts = reference.ask(http, args.base_url, args.model, api_key=key, timeout_s=args.timeout_s, long=long)
        except reference.Unanswered as error:
            return _unanswered(error)
        about = {name: value for name, value in args.baseline_key.items() if name != MEMBERS}
        name = key_of(about, context.machine, http)
        kept = None if args.new_baseline else baselines.read_reference(context.state, name)
        if kept is not None:
            return compared(kept, texts)
        data = {"verdict": "new reference", "texts": [text.text for text in texts]}
        if not (args.record or args.new_baseline):
            msg = "no reference text of this image, model and arguments yet; one is kept once all checks pass"
            return Result(msg=msg, data={**data, "verdict": "not compared"})
        score = _prompts(texts)
        if args.answers == "judged":
            try:
                judged = self._judged(args, context, http, key, texts)
            except reference.Unanswered as error:
                return _unanswered(error)
            if judged.verdict != "sane":
                if judged.verdict == "garbage":
                    Baselines(context.state).remove(name)
                return _not_recorded(judged, container_labels.engine_at(context, args.base_url), data)
            score = judged.sentence
        baselines.write_reference(context.state, name, texts)
        return Result(msg=f"reference text recorded ({score})", data=data)

    def _judged(self, args: Args, context: Context, http: Http, key: str, texts: Sequence[Text]) -> Judged:
        """Judge the texts, and answers to questions; the longest question is asked twice, new and from the prefix cache."""
        given: list[str] = []
        for question in (*reference.QUESTIONS, reference.NEEDLE):
            context.progress(len(given), len(reference.QUESTIONS) + 1, unit="questions", text="asking")
            given.append(
                reference.ask_answers(
                    http, args.base_url, args.model, question.prompt, api_key=key, timeout_s=args.timeout_s
                )
            )
        judged = reference.judge_answers(given[:-1], [text.text for text in texts])
        return reference.from_cache(judged, given[-2], given[-1])


def _with_adapters(own: Result, adapters: Mapping[str, Result]) -> Result:
    """Return the model's result with those of its adapters: the worst of them all counts."""
    found = replace(own, data={**own.data, "adapters": {name: result.data for name, result in adapters.items()}})
    for name, result in adapters.items():
        same = result.data.get("texts") == own.data["texts"]
        aside = ", word for word the text without it: is it applied?" if same else ""
        found.msg += f"; {name}: {result.msg}{aside}"
        found.failed |= result.failed
        found.exit = found.exit or result.exit or (Exit.INCONCLUSIVE if same else None)
        found.fix = found.fix or result.fix
    return found


def compared(kept: Reference, texts: Sequence[Text]) -> Result:
    """Return the result of comparing generated texts with the reference. Pure."""
    verdict, partings = reference.judge(kept.texts, texts)
    tied = sum(parting.tied for parting in partings)
    aside = f"; {tied} of {len(texts)} parted at a near-tie" if tied else ""
    data = _data(verdict, kept, texts, partings)
    if verdict == "same":
        return Result(msg=f"generates its reference text ({_prompts(texts)}{aside})", data=data)
    when = units.moment(kept.since, units.MINUTE)
    if verdict == "another":
        msg = f"another text than on {when} with the same image, model and arguments: {CAUSES}."
        return Result(failed=True, msg=msg, fix=ACCEPT, data=data)
    differ = f"{len(partings)} of {len(texts)} reference texts differ from those of {when}"
    msg = f"{differ}{aside}: rounding, or {CAUSES}; not certain either way."
    return Result(msg=msg, fix=ACCEPT, exit=Exit.INCONCLUSIVE, data=data)


def _not_recorded(judged: Judged, engine: Engine, data: dict[str, Any]) -> Result:
    """Return the result for first answers that are not fit for a reference."""
    data = {**data, "verdict": judged.verdict, "evidence": list(judged.evidence)}
    if judged.verdict == "garbage":
        cause = engine.probe_flags.causes.get("garbage", "")
        fix = f"Likely cause: {cause}." if cause else f"Likely cause: {CAUSES}."
        return Result(failed=True, msg=f"{judged.sentence}.", fix=fix, data=data)
    msg = f"{judged.sentence}; no reference text recorded."
    return Result(msg=msg, fix=ANY, exit=Exit.INCONCLUSIVE, data=data)


def _data(verdict: Verdict, kept: Reference, texts: Sequence[Text], partings: list[Parting]) -> dict[str, Any]:
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
    found = {"texts": [text.text for text in texts], "reference": [text.text for text in kept.texts], "partings": rows}
    evidence = (
        [line for parting in partings for line in (parting.sentence, *_both(parting))] if verdict != "same" else []
    )
    return {"verdict": verdict, **found, "evidence": evidence}


def _both(removal: Parting) -> list[str]:
    return [f"  reference: {removal.before[:SHOWN_CHARS]!r}", f"  now:       {removal.now[:SHOWN_CHARS]!r}"]


def _unanswered(error: reference.Unanswered) -> Result:
    msg = f"the reference text was not generated: {error}."
    if error.slow:
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data={"verdict": "inconclusive"})
    return Result(failed=True, msg=msg, data={"verdict": "error"})


def _prompts(texts: Sequence[Text]) -> str:
    return f"{len(texts)} prompts"
