"""Rules about speculative decoding: its method and keys by release, its drafter, and the effects of a quantised model."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.model import config_parts
from sparkwright.engines.vllm import speculation
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID, Case, Example, graded, rule
from sparkwright.engines.vllm.speculation import KEYS, METHODS
from sparkwright.engines.vllm.versions import within
from sparkwright.visible import one_line

FLAG = "speculative-config"
TOKENS = "num_speculative_tokens"
PER_BATCH = "num_speculative_tokens_per_batch_size"
SOURCE = "vLLM, config/speculative.py by release"
#: formats of 4 bits whose lists of exceptions decide how the drafter is loaded
FOUR_BITS = ("modelopt", "modelopt_fp4", "modelopt_mixed", "quark", "compressed-tensors")
SHOWN_CHARS = 60
#: booleans of vLLM's configuration
BOOLEANS = frozenset("true false 1 0 1.0 0.0 yes no on off y n t f".split())
#: methods without a default number of tokens
UNNUMBERED = ("mtp", "ngram", "ngram_gpu")

#: models for the examples
WITH_LAYERS: dict[str, Any] = {**HYBRID, "text_config": {**HYBRID["text_config"], "mtp_num_hidden_layers": 1}}


@dataclass(frozen=True, slots=True)
class Wrong:
    """An error in `speculative-config` that vLLM refuses."""

    why: str
    way: Way
    #: this release refuses it; None if not known
    certain: bool | None = True


def given(case: Case) -> dict[str, Any] | None:
    """Return the keys of `speculative-config`, including dotted ones; None if the recipe has none."""
    value = case.flag(FLAG)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    dotted = {name.partition(".")[2]: held for name, held in case.asked.flags.items() if name.startswith(f"{FLAG}.")}
    if not isinstance(value, Mapping) and not dotted:
        return None
    return {**(value if isinstance(value, Mapping) else {}), **dotted}


@rule(
    "speculation",
    sources=(
        "vLLM, config/speculative.py of 23 releases from 0.11.2 to 0.33.0 (engines/vllm/speculation.py)",
        "vllm-project/vllm 47277: a drafter with good acceptance that makes a server slower",
        "docs/speculation.md: what to measure, and how",
    ),
    example=Example({FLAG: {"method": "eagle_3", "model": "/models/drafter", TOKENS: 3}}),
)
def speculation_config(case: Case) -> Iterator[Finding]:
    """Speculative decoding needs a method, a drafter and a number of tokens that this release knows.
    A drafter proposes some tokens, and the model checks them in one step: the text is the model's own, and arrives faster when most
    proposals are accepted. The drafter is layers of the model itself (mtp), a second model (eagle3, dflash, draft_model), or the
    text so far (ngram, suffix). vLLM exits with a validation error for an unknown method, an unknown key or a value of another type,
    after the previous server was stopped.

    How much it brings depends on model, prompt and load: the acceptance by position in the smoke test, and
    `bench.sweep --flag speculative-config.num_speculative_tokens --values unset,1,2,3`, tell. docs/speculation.md has the whole.
    """
    config = given(case)
    if config is None:
        return
    for wrong in (*_keys(case, config), *_method(case, config)) or _drafter(case, config):
        severity = graded(wrong.certain)
        if severity:
            outcome = "refuses" if severity == "error" else "may refuse"
            yield Finding(
                severity, f"{FLAG}: {wrong.why}; {case.engine} {outcome} to start.", (wrong.way,), SOURCE, FLAG
            )


def _keys(case: Case, config: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yield keys that the release lacks, and values of the wrong kind."""
    for name, value in config.items():
        key = KEYS.get(name)
        if key is None:
            near = next(iter(difflib.get_close_matches(name, KEYS, n=1)), "")
            change = {
                **{other: held for other, held in config.items() if other != name},
                **({near: value} if near else {}),
            }
            way = Way(f"write {near}" if near else f"remove {name}", {FLAG: change})
            yield Wrong(f"{one_line(name, at_most=SHOWN_CHARS)} is not one of its keys", way, _known(case))
            continue
        there = within(case.release, key.since, key.until)
        if there is not True and (key.since or key.until):
            when = f"was removed in {key.until}" if _gone(case, key.until) else f"came with {key.since or key.until}"
            way = Way(f"remove {name}", {FLAG: {other: held for other, held in config.items() if other != name}})
            yield Wrong(f"{name} {when}", way, None if there is None else True)
        elif why := _misfit(key, value):
            got = one_line(repr(value), at_most=SHOWN_CHARS)
            yield Wrong(f"{name} must be {why}, got {got}", Way("correct it"), True)


def _method(case: Case, config: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yield a method that the release lacks."""
    name = config.get("method")
    if not isinstance(name, str):
        return
    method = METHODS.get(name)
    if method is None:
        near = next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), METHODS, n=1)), "")
        change = {FLAG: {**config, "method": near}} if near else {}
        way = Way(
            f"write method: {near}"
            if near
            else f"choose one of {', '.join(name for name, method in METHODS.items() if method.now)}",
            change,
        )
        yield Wrong(f"{one_line(name, at_most=SHOWN_CHARS)} is not a method", way, _known(case))
        return
    there = within(case.release, method.since, method.until)
    if there is not True and (method.since or method.until):
        when = f"was removed in {method.until}" if _gone(case, method.until) else f"came with {method.since}"
        yield Wrong(
            f"method {name} {when}", Way("take another method or another image"), None if there is None else True
        )


def _drafter(case: Case, config: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yield a missing second model, and an impossible number of tokens."""
    name, method = _meant(config)
    tokens, own = _number(config.get(TOKENS)), config.get("model") is None
    if own and (not name or (method is not None and method.drafter == "second model")):
        what = f"method {name}" if name else "a config without `method`"
        yield Wrong(f"{what} needs a drafter, named by `model`", Way("mount a drafter and name its path as `model`"))
    elif own and name in UNNUMBERED and config.get(TOKENS) is None and not config.get(PER_BATCH):
        yield Wrong(f"{TOKENS} is missing", Way(f"write {TOKENS}: 1, and measure more", {FLAG: {**config, TOKENS: 1}}))
    layers = config_parts.prediction_layers(case.architecture.config)
    if own and name == "mtp" and tokens and layers and tokens > layers and tokens % layers:
        fitting = int(tokens - tokens % layers)
        why = f"{TOKENS} {tokens:g} is not a multiple of the model's {layers} prediction layers"
        yield Wrong(why, Way(f"write {fitting}", {FLAG: {**config, TOKENS: fitting}}))
    low, high = (_number(config.get(key)) for key in ("prompt_lookup_min", "prompt_lookup_max"))
    if low is not None and high is not None and low > high:
        way = Way("swap them", {FLAG: {**config, "prompt_lookup_min": high, "prompt_lookup_max": low}})
        yield Wrong(f"prompt_lookup_min {low:g} is above prompt_lookup_max {high:g}", way)


def _meant(config: Mapping[str, Any]) -> tuple[str, speculation.Method | None]:
    """Return vLLM's own name of the method, and its entry in the table; "" if none is named."""
    name = str(config.get("method") or ("ngram" if config.get("model") in ("ngram", "[ngram]") else ""))
    method = METHODS.get(name)
    return (method.now if method and method.now else name), method


@rule(
    "speculation-without-layers",
    sources=("vLLM 0.32.0, config/speculative.py: n_predict from num_nextn_predict_layers and its like",),
    example=Example({FLAG: {"method": "mtp", TOKENS: 2}}, model=DENSE),
)
def speculation_without_layers(case: Case) -> Iterator[Finding]:
    """Multi-token prediction needs layers that were trained for it.
    They are part of the model (num_nextn_predict_layers, mtp_num_hidden_layers, num_mtp_modules in its config.json); a model without
    them cannot be served with the method mtp.
    """
    config = given(case) or {}
    method = METHODS.get(str(config.get("method") or ""))
    is_mtp = method is not None and (method.now or config.get("method")) == "mtp"
    known = bool(case.architecture.config) and case.architecture.kind != "unknown"
    if (
        is_mtp
        and config.get("model") is None
        and known
        and not config_parts.prediction_layers(case.architecture.config)
    ):
        name = case.architecture.name or "the model"
        sentence = f"{FLAG}: {name} has no layers to predict with, so no {config['method']}."
        way = Way("remove it, or name a draft model", {FLAG: None})
        yield Finding("error", sentence, (way,), "vLLM 0.32.0", FLAG)


@rule(
    "quantised-drafter",
    sources=(
        "vllm-project/vllm 38650 and Model-Optimizer 1124: an NVFP4 checkpoint with a BF16 drafter that its exclude_modules leaves out",
        "sgl-project/sglang 36158: an MXFP4 checkpoint of which no exclude entry names mtp.*; the drafter's weights do not fit",
        "vllm-project/vllm 36331, 36872: an acceptance near 0 with damaged drafters of NVFP4 checkpoints",
    ),
    example=Example(
        {FLAG: {"method": "mtp", TOKENS: 1}},
        model={**WITH_LAYERS, "quantization_config": {"quant_method": "modelopt", "exclude_modules": []}},
    ),
)
def quantised_drafter(case: Case) -> Iterator[Finding]:
    """A model of 4 bits must say that its prediction layers are not.
    Most makers leave the layers of multi-token prediction in BF16. The engine builds them as the quantisation config says: where no
    entry of its exceptions (`ignore`, `exclude_modules`, `exclude`, `modules_to_not_convert`) names them, they are built with 4 bits, and
    loading fails, or the acceptance is near 0 and speculation only costs time. The smoke test's acceptance by position tells.
    """
    config, model = given(case) or {}, case.architecture.config
    if _meant(config)[0] != "mtp" or config.get("model") is not None or not config_parts.prediction_layers(model):
        return
    quantisation = config_parts.quantisation(model)
    if quantisation.get("quant_method") in FOUR_BITS and config_parts.spares_prediction(quantisation) is False:
        sentence = (
            f"{FLAG}: the model's quantisation ({quantisation['quant_method']}) excepts no prediction layers, so its drafter is "
            "built with 4 bits: loading fails, or few proposals are accepted."
        )
        way = Way("read the acceptance in the smoke test; remove it where that is near 0", {FLAG: None})
        yield Finding("warning", sentence, (way,), "vLLM #38650", FLAG)


def _known(case: Case) -> bool | None:
    """Return True if all keys and methods of the release are known, else None."""
    return within(case.version, "", speculation.AFTER) or None


def _gone(case: Case, until: str) -> bool:
    return bool(until) and within(case.version, until) is not False


def _misfit(key: speculation.Key, value: Any) -> str:
    """Return what a key's value must be; "" if it is valid, or null.

    vLLM's configuration converts values: "2", 2.0 and true are whole numbers to it, and "yes" is true (a run of 0.32.0).
    """
    if value is None or not key.kind:
        return ""
    if key.kind == "text":
        return "" if isinstance(value, str) else "text"
    if key.kind == "bool":
        return "" if str(value).lower() in BOOLEANS else "true or false"
    number = _number(value)
    if number is None or (key.kind == "int" and number != int(number)):
        return "a whole number" if key.kind == "int" else "a number"
    return f"at least {key.least:g}" if key.least is not None and number < key.least else ""


def _number(value: Any) -> float | None:
    """Return a value as a number; None if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
