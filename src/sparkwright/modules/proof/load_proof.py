from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines.http import Http
from sparkwright.errors import Failed
from sparkwright.host.containers import engine_of, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records.baselines import key_of, name_of
from sparkwright.host.runs import measurement_lock
from sparkwright.measure import figures, load, prefix, stream
from sparkwright.measure.asker import Asker, Ruler
from sparkwright.measure.load_ladder import Rung, ladder
from sparkwright.modules.proof.verdict import ASIDE
from sparkwright.protocol.result import Result, arg
from sparkwright.units import MINUTE, moment

#: where the host keeps what was proved, by the key of the baseline
FOLDER = "load_proofs"
ANSWER_TOKENS = 32
#: words are random: their tokens are known within this share
SLACK = 0.03
#: the words of two prompts that tell the tokens of a word. The random text at the head of each is worth some tokens more or
#: less: over 224 words that was 2 % of a word, and one prompt of the whole context in twenty or so was longer than the context
FEW_WORDS, MANY_WORDS = 32, 2048


class LoadProof(Module["LoadProof.Args"]):
    """The server serves the context that its recipe promises in `expect.load`, with so many streams at once.

    Fresh prompts of an eighth, a quarter, half and all of the context go out one after the other, then all streams together.
    Between two of them the guard of the start is asked: one that stopped the server fails the start. What was proved is kept
    under the key of the throughput baseline, and is not proved again for the same server on the same host.

    Returns: rungs (context, streams, tok_per_s, ttft_s, lowest_bytes: the lowest MemAvailable meanwhile), kept (whether it was
    proved before). Fails when a stream was refused or broke off.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        load: dict[str, Any] = arg("context (tokens of a prompt) and streams; empty: nothing", default_factory=dict)
        baseline_key: dict[str, Any] = arg("what makes measurements comparable; empty: always", default_factory=dict)
        timeout_s: float = arg("the longest silence of a stream, seconds", default=900.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        if not args.load:
            return Result(msg="no load promised", data={"verdict": ASIDE, "rungs": []})
        http = engine_of.at(context, args.base_url).http
        place = name_of(FOLDER, {**key_of(args.baseline_key, context.machine, http), "load": args.load})
        kept = context.state.read(place) if args.baseline_key else None
        if kept and kept.get("rungs"):
            when = moment(kept.get("since") or 0, MINUTE)
            msg = f"{kept.get('sentence') or 'proved'}, proved {when}"
            return Result(msg=msg, data={"rungs": kept["rungs"], "kept": True})
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        with measurement_lock.alone(context.state, context.run_id, "a load proof", note=context.note):
            found = self._climbed(http, args, key, context)
        rows = [asdict(rung) for rung in found]
        sentence = f"survives {found[-1]}"
        if args.baseline_key:
            context.state.write(place, {"rungs": rows, "since": time.time(), "sentence": sentence})
        return Result(msg=sentence, data={"rungs": rows, "kept": False})

    @staticmethod
    def _climbed(http: Http, args: Args, key: str, context: Context) -> list[Rung]:
        steps = ladder(int(args.load["context"]), int(args.load.get("streams") or 1))
        asker = learned(Asker(http, args.model, args.base_url, key), args.timeout_s, shortest_tokens=steps[0].context)
        found: list[Rung] = []
        for rung in steps:
            context.go_on()
            context.progress(len(found), len(steps), text=f"{rung.context} tokens x {rung.streams}")
            found.append(_measured(rung, asker, args, context))
            context.note(str(found[-1]))
        return found


def learned(asker: Asker, timeout_s: float, *, shortest_tokens: int) -> Asker:
    """Learn how many tokens the server makes of a word.

    Args:
        asker: sends the prompts.
        timeout_s: the longest silence of a stream, seconds.
        shortest_tokens: the shortest prompt that will be asked for; none of these is longer than half of it.

    Raises:
        Failed: the server gives no token.
    """
    words = (FEW_WORDS, max(FEW_WORDS * 2, min(MANY_WORDS, shortest_tokens // 2)))
    try:
        tokens = [
            asker.run(asker.request(prefix.text(count), 1), cap_s=timeout_s, timeout_s=timeout_s).prompt_tokens
            for count in words
        ]
    except stream.StreamError as error:
        raise Failed(f"no token from {asker.base_url}: {error}.") from None
    asker.ruler = Ruler.of((words[0], tokens[0]), (words[1], tokens[1]))
    return asker


def _measured(rung: Rung, asker: Asker, args: LoadProof.Args, context: Context) -> Rung:
    """Send the prompts of one step and read the memory meanwhile."""
    tokens = max(1, int(rung.context * (1 - SLACK)) - ANSWER_TOKENS)
    requests = [asker.sized(tokens, ANSWER_TOKENS) for _ in range(rung.streams)]
    context.guards.mark()
    before = context.machine.meminfo()["MemAvailable"]
    how: dict[str, Any] = {"cap_s": args.timeout_s, "timeout_s": args.timeout_s, "api_key": asker.api_key}
    outcomes = load.run(args.base_url, requests, counted=asker.http.counted, **how)
    seen = context.guards.lowest_bytes
    after = context.machine.meminfo()["MemAvailable"]
    _refuse_failed(rung, outcomes, context)
    found = figures.of([outcome.stream for outcome in outcomes if outcome.stream])
    return Rung(
        rung.context,
        rung.streams,
        round(found.stream_tok_per_s, 2) if found.stream_tok_per_s else None,
        round(found.ttft.max, 3) if found.ttft else None,
        min(before, after) if seen is None else min(seen, before, after),
    )


def _refuse_failed(rung: Rung, outcomes: Sequence[load.Outcome], context: Context) -> None:
    """Raise Failed for a step of which not every stream gave a token."""
    failed = [outcome for outcome in outcomes if outcome.stream is None or not outcome.stream.points]
    if failed:
        context.guards.check()  # what it was stopped for says more
        why = failed[0].error or "no token came"
        of = f"{len(failed)} of {rung.streams} streams" if rung.streams > 1 else "the stream"
        message = f"{of} of {rung.context} tokens failed: {why}."
        raise Failed(message, fix="Promise less in `expect.load`, or give the server more memory for its KV cache.")
