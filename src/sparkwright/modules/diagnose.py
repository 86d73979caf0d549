"""The `diagnose` module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engine import architecture, causes, endpoints, rules, versions
from sparkwright.engine.logs import EngineState
from sparkwright.engine.predict import effective
from sparkwright.host import evidence, http_probe, server_key
from sparkwright.measure import gpu, smoke, stream
from sparkwright.modules.base import Context, Module, Result, arg

TOKENS = 64
CAP_S = 8.0
THINKS_TOKENS = 32


@dataclass(frozen=True)
class Tried:
    """A measured stream, and one that was told nothing about thinking. None where the server gave none."""

    rate: float | None = None
    gpu: gpu.State = gpu.State()
    thought: int | None = None
    answered: int = 0
    error: str = ""


class Diagnose(Module["Diagnose.Args"]):
    """Why is it slow: what can be seen of the server and its host, most likely cause first, each with evidence and fix.

    It looks at the engine's own log (what is effective, warnings), the flags against the rules of `invoke lint`, the
    GPU's clock and power while a stream decodes, memory, page cache and swap, Ollama, other requests, thinking and
    speculation. It changes nothing; of the server it asks two short answers, and none while others use it. That
    nothing was found is no proof.

    Returns: causes (cause, verdict: found, possible, unknown or excluded, evidence, fix), tok_per_s, gpu.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        container: str = arg("the container, for its log", default="")
        image: str = arg("its image, as repository:tag@digest", default="")
        model_id: str = arg("the model's name on the hub", default="")
        model_dir: str = arg("the model's folder on the host", default="")
        flags: dict[str, Any] = arg("the flags of vllm serve, under their own names", default_factory=dict)
        env: dict[str, str] = arg("the container's environment", default_factory=dict)
        platform: Literal["gb10", "ascend"] = arg("whose rules the flags must keep", default="gb10")
        tok_per_s: float | None = arg("what the recipe expects of one stream; null: nothing", default=None)
        api_key_secret: str = arg(
            "a secret to use instead of the key that the server was deployed with", default="VLLM_API_KEY"
        )

    def run(self, args: Args, context: Context) -> Result:
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        before, _ = evidence.metrics(args.base_url, key)
        busy = evidence.busy(before)
        tried = Tried() if busy else _try(args, context, key)
        after, _ = evidence.metrics(args.base_url, key)
        seen = _seen(args, context, tried, before, after, busy)
        found = causes.causes(seen)
        rows = [one.to_json() for one in found]
        data = {"causes": rows, "tok_per_s": tried.rate and round(tried.rate, 1), "gpu": tried.gpu.to_json()}
        return Result(msg=_sentence(args, tried, found), data=data)


def _try(args: Diagnose.Args, context: Context, key: str) -> Tried:
    """Measure one stream with an eye on the GPU, then ask once without a word about thinking."""
    shape = smoke.Shape(args.base_url, args.model, key)
    context.progress(0, 2, text="measuring one stream")
    try:
        shape.run("prose", 8, CAP_S)
        with gpu.Sampler(lambda: evidence.gpu_query(context)) as sampler:
            one = shape.run("prose", TOKENS, CAP_S)
    except stream.StreamError as error:
        return Tried(error=str(error))
    context.progress(1, 2, text="asking whether it thinks")
    body = endpoints.measured_stream(args.model, smoke.prompt("reasoning"), THINKS_TOKENS)
    plain = {name: value for name, value in body.items() if name != "chat_template_kwargs"}
    try:
        free = stream.run(args.base_url, plain, api_key=key, cap_s=CAP_S)
    except stream.StreamError:
        return Tried(one.tok_per_s, sampler.state)
    return Tried(one.tok_per_s, sampler.state, min(free.thought, free.tokens), free.tokens)


def _seen(
    args: Diagnose.Args,
    context: Context,
    tried: Tried,
    before: dict[str, float],
    after: dict[str, float],
    busy: float | None,
) -> causes.Seen:
    state = evidence.log(context, args.container)
    config = evidence.model_config(context.machine.expand(args.model_dir)) if args.model_dir else {}
    kind = architecture.classify(config)
    version = versions.parse(_version(args, state))
    asked = rules.Asked(args.flags, args.image, args.platform, args.env)
    drafts = after.get(endpoints.DRAFTS, 0) - before.get(endpoints.DRAFTS, 0)
    accepted = after.get(endpoints.ACCEPTED_TOKENS, 0) - before.get(endpoints.ACCEPTED_TOKENS, 0)
    return causes.Seen(
        share=tried.rate / args.tok_per_s if tried.rate and args.tok_per_s else None,
        gpu=tried.gpu.sentence,
        gpu_degraded=tried.gpu.degraded(None) if tried.gpu.known else None,
        log=state.to_json() if state else None,
        ollama=evidence.ollama(context),
        memory=evidence.memory(context),
        busy=busy,
        kv_used=after.get(endpoints.KV_CACHE_USED),
        acceptance=accepted / drafts if drafts > 0 else None,
        findings=rules.check(asked, kind, version),
        flags=args.flags,
        model=args.model_id,
        thought=tried.thought,
        answered=tried.answered,
        budget=effective(asked, kind, version).budget,
    )


def _version(args: Diagnose.Args, state: EngineState | None) -> str | None:
    """As its log says, else as the server does."""
    said = state.value("version") if state else None
    found = said or (http_probe.ask(args.base_url, endpoints.VERSION).json() or {}).get("version")
    return str(found) if found else None


def _sentence(args: Diagnose.Args, tried: Tried, found: list[causes.Cause]) -> str:
    if tried.error:
        rate = f"no stream to measure ({tried.error})"
    elif tried.rate is None:
        rate = "not measured: others use it"
    else:
        of = f" of {args.tok_per_s:g} expected" if args.tok_per_s else ""
        rate = f"{tried.rate:.1f} tok/s{of}"
    first = next((one for one in found if one.verdict == "found"), None)
    return f"{rate}; {f'first: {first.name}' if first else 'nothing was found that makes it slow'}"
