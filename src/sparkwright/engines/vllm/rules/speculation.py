"""Rules about speculative decoding: methods and keys by release, the drafter, and quantized models."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.findings import Finding, Fix
from sparkwright.engines.model import config_parts
from sparkwright.engines.vllm import speculation
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL, Case, Example, rule, severity_of
from sparkwright.engines.vllm.speculation import CONFIG_FLAG, KEYS, METHODS, TOKENS_KEY
from sparkwright.engines.vllm.versions import within
from sparkwright.visible import one_line

TOKENS_PER_BATCH_KEY = "num_speculative_tokens_per_batch_size"
SOURCE = "vLLM, config/speculative.py by release"
#: 4-bit formats whose exclude list decides how the drafter is loaded
FOUR_BIT_FORMATS = ("modelopt", "modelopt_fp4", "modelopt_mixed", "quark", "compressed-tensors")
MAX_SHOWN_CHARS = 60
#: spellings that vLLM's configuration accepts as booleans
BOOLEAN_WORDS = frozenset("true false 1 0 1.0 0.0 yes no on off y n t f".split())
#: methods without a default number of tokens
METHODS_WITHOUT_DEFAULT = ("mtp", "ngram", "ngram_gpu")

#: models for the examples
MODEL_WITH_MTP: dict[str, Any] = {
    **HYBRID_MODEL,
    "text_config": {**HYBRID_MODEL["text_config"], "mtp_num_hidden_layers": 1},
}


@dataclass(frozen=True, slots=True)
class ConfigError:
    """An error in `speculative-config`."""

    reason: str
    fix: Fix
    #: True if this release refuses to start with it; None if unknown
    is_refused: bool | None = True


@rule(
    "speculation",
    sources=(
        "vLLM, config/speculative.py of 23 releases from 0.11.2 to 0.33.0 (engines/vllm/speculation.py)",
        "vllm-project/vllm 47277: a drafter with a good acceptance rate that makes a server slower",
        "docs/speculation.md: what to measure, and how",
    ),
    example=Example({CONFIG_FLAG: {"method": "eagle_3", "model": "/models/drafter", TOKENS_KEY: 3}}),
)
def speculation_config(case: Case) -> Iterator[Finding]:
    """Speculative decoding needs a method, a drafter and a number of tokens that this release supports.
    A drafter proposes tokens, and the model verifies them in one step: the output is that of the model, and faster if most proposals are
    accepted. The drafter is a set of layers in the model itself (mtp), a second model (eagle3, dflash, draft_model), or a lookup in the
    text so far (ngram, suffix). vLLM exits with a validation error for an unknown method, an unknown key or a value of the wrong type,
    after the previous server has been stopped.

    The speedup depends on model, prompt and load. To measure it, see the acceptance by position in the smoke test, or run
    `bench.sweep --flag speculative-config.num_speculative_tokens --values unset,1,2,3`. Details are in docs/speculation.md.
    """
    config = case.request.speculative_config()
    if config is None:
        return
    for error in (*_check_keys(case, config), *_check_method(case, config)) or _check_drafter(case, config):
        severity = severity_of(error.is_refused)
        if severity:
            outcome = "refuses" if severity == "error" else "may refuse"
            yield Finding(
                severity,
                f"{CONFIG_FLAG}: {error.reason}; {case.engine} {outcome} to start.",
                (error.fix,),
                SOURCE,
                CONFIG_FLAG,
            )


def _check_keys(case: Case, config: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield errors for keys that the release does not have, and for invalid values."""
    for name, value in config.items():
        key = KEYS.get(name)
        remaining = {other: config[other] for other in config if other != name}
        if key is None:
            closest = next(iter(difflib.get_close_matches(name, KEYS, n=1)), "")
            change = {**remaining, closest: value} if closest else remaining
            fix = Fix(f"write {closest}" if closest else f"remove {name}", {CONFIG_FLAG: change})
            shown_name = one_line(name, max_chars=MAX_SHOWN_CHARS)
            yield ConfigError(f"{shown_name} is not one of its keys", fix, _is_reviewed(case))
            continue
        is_available = within(case.release, key.since, key.until)
        if is_available is not True and (key.since or key.until):
            history = (
                f"was removed in {key.until}"
                if _is_removed(case, key.until)
                else f"was added in {key.since or key.until}"
            )
            fix = Fix(f"remove {name}", {CONFIG_FLAG: remaining})
            yield ConfigError(f"{name} {history}", fix, None if is_available is None else True)
        elif requirement := _check_key_value(key, value):
            shown_value = one_line(repr(value), max_chars=MAX_SHOWN_CHARS)
            yield ConfigError(f"{name} must be {requirement}, got {shown_value}", Fix("correct it"), True)


def _check_method(case: Case, config: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error for a method that the release does not have."""
    name = config.get("method")
    if not isinstance(name, str):
        return
    method = METHODS.get(name)
    if method is None:
        closest = next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), METHODS, n=1)), "")
        if closest:
            fix = Fix(f"write method: {closest}", {CONFIG_FLAG: {**config, "method": closest}})
        else:
            fix = Fix(f"choose one of {', '.join(name for name, method in METHODS.items() if not method.current_name)}")
        yield ConfigError(f"{one_line(name, max_chars=MAX_SHOWN_CHARS)} is not a method", fix, _is_reviewed(case))
        return
    is_available = within(case.release, method.since, method.until)
    if is_available is not True and (method.since or method.until):
        history = (
            f"was removed in {method.until}" if _is_removed(case, method.until) else f"was added in {method.since}"
        )
        yield ConfigError(
            f"method {name} {history}",
            Fix("use another method or another image"),
            None if is_available is None else True,
        )


def _check_drafter(case: Case, config: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield errors for a missing second model and for invalid numbers of tokens."""
    name, method = _resolve_method(config)
    tokens, has_no_model = _parse_number(config.get(TOKENS_KEY)), config.get("model") is None
    if has_no_model and (not name or (method is not None and method.drafter == "second model")):
        subject = f"method {name}" if name else "a config without `method`"
        yield ConfigError(
            f"{subject} needs a drafter under `model`", Fix("mount a drafter and set `model` to its path")
        )
    elif (
        has_no_model
        and name in METHODS_WITHOUT_DEFAULT
        and config.get(TOKENS_KEY) is None
        and not config.get(TOKENS_PER_BATCH_KEY)
    ):
        yield ConfigError(
            f"{TOKENS_KEY} is missing",
            Fix(f"write {TOKENS_KEY}: 1, and measure more", {CONFIG_FLAG: {**config, TOKENS_KEY: 1}}),
        )
    layers = config_parts.count_prediction_layers(case.architecture.config)
    if has_no_model and name == "mtp" and tokens and layers and tokens > layers and tokens % layers:
        multiple = int(tokens - tokens % layers)
        reason = f"{TOKENS_KEY} {tokens:g} is not a multiple of the model's {layers} prediction layers"
        yield ConfigError(reason, Fix(f"write {multiple}", {CONFIG_FLAG: {**config, TOKENS_KEY: multiple}}))
    minimum, maximum = (_parse_number(config.get(key)) for key in ("prompt_lookup_min", "prompt_lookup_max"))
    if minimum is not None and maximum is not None and minimum > maximum:
        fix = Fix("swap them", {CONFIG_FLAG: {**config, "prompt_lookup_min": maximum, "prompt_lookup_max": minimum}})
        yield ConfigError(f"prompt_lookup_min {minimum:g} is above prompt_lookup_max {maximum:g}", fix)


def _resolve_method(config: Mapping[str, Any]) -> tuple[str, speculation.SpeculationMethod | None]:
    """Return the current name of the method ("" if the config sets none), and the method; None if it is unknown."""
    name = str(config.get("method") or ("ngram" if config.get("model") in ("ngram", "[ngram]") else ""))
    method = METHODS.get(name)
    return (method.current_name if method and method.current_name else name), method


@rule(
    "speculation-without-layers",
    sources=("vLLM 0.32.0, config/speculative.py: n_predict from num_nextn_predict_layers and its like",),
    example=Example({CONFIG_FLAG: {"method": "mtp", TOKENS_KEY: 2}}, model=DENSE_MODEL),
)
def speculation_without_layers(case: Case) -> Iterator[Finding]:
    """Multi-token prediction needs a model with prediction layers.
    These layers are trained with the model (num_nextn_predict_layers, mtp_num_hidden_layers or num_mtp_modules in its config.json). A
    model without them cannot be served with the method mtp.
    """
    config = case.request.speculative_config() or {}
    method = METHODS.get(str(config.get("method") or ""))
    is_mtp = method is not None and (method.current_name or config.get("method")) == "mtp"
    is_model_known = bool(case.architecture.config) and case.architecture.kind != "unknown"
    if (
        is_mtp
        and config.get("model") is None
        and is_model_known
        and not config_parts.count_prediction_layers(case.architecture.config)
    ):
        name = case.architecture.name or "the model"
        message = f"{CONFIG_FLAG}: {name} has no prediction layers, which {config['method']} needs."
        fix = Fix("remove it, or name a draft model", {CONFIG_FLAG: None})
        yield Finding("error", message, (fix,), "vLLM 0.32.0", CONFIG_FLAG)


@rule(
    "quantised-drafter",
    sources=(
        "vllm-project/vllm 38650 and Model-Optimizer 1124: an NVFP4 checkpoint with a BF16 drafter that is missing from exclude_modules",
        "sgl-project/sglang 36158: an MXFP4 checkpoint without an exclude entry for mtp.*; the shapes of the drafter's weights do not match",
        "vllm-project/vllm 36331, 36872: an acceptance rate near 0 with damaged drafters of NVFP4 checkpoints",
    ),
    example=Example(
        {CONFIG_FLAG: {"method": "mtp", TOKENS_KEY: 1}},
        model={**MODEL_WITH_MTP, "quantization_config": {"quant_method": "modelopt", "exclude_modules": []}},
    ),
)
def quantized_drafter(case: Case) -> Iterator[Finding]:
    """The quantization config of a 4-bit model must exclude its prediction layers.
    Most publishers leave the layers for multi-token prediction in BF16. If the exclude list (`ignore`, `exclude_modules`, `exclude` or
    `modules_to_not_convert`) does not contain them, the engine builds them with 4 bits: loading fails, or the acceptance rate is near 0 and
    speculation only costs time. The smoke test shows the acceptance by position.
    """
    config, model = case.request.speculative_config() or {}, case.architecture.config
    if (
        _resolve_method(config)[0] != "mtp"
        or config.get("model") is not None
        or not config_parts.count_prediction_layers(model)
    ):
        return
    quantization = config_parts.quantisation_config(model)
    if (
        quantization.get("quant_method") in FOUR_BIT_FORMATS
        and config_parts.has_prediction_exceptions(quantization) is False
    ):
        message = (
            f"{CONFIG_FLAG}: the model's quantization ({quantization['quant_method']}) does not exclude the prediction layers, so the drafter is "
            "built with 4 bits: loading fails, or few proposals are accepted."
        )
        fix = Fix("check the acceptance in the smoke test; if it is near 0, remove it", {CONFIG_FLAG: None})
        yield Finding("warning", message, (fix,), "vLLM #38650", CONFIG_FLAG)


def _is_reviewed(case: Case) -> bool | None:
    """Return True if the release's methods and keys have been reviewed, otherwise None."""
    return within(case.version, "", speculation.FIRST_RELEASE_WITH_UNKNOWN_KEYS) or None


def _is_removed(case: Case, until: str) -> bool:
    return bool(until) and within(case.version, until) is not False


def _check_key_value(key: speculation.SpeculationKey, value: Any) -> str:
    """Return the requirement that a value violates, such as "a whole number"; "" if it is valid or null.

    vLLM's configuration converts values: it accepts "2", 2.0 and true as whole numbers, and "yes" as true (a run of 0.32.0).
    """
    if value is None or not key.kind:
        return ""
    if key.kind == "text":
        return "" if isinstance(value, str) else "text"
    if key.kind == "bool":
        return "" if str(value).lower() in BOOLEAN_WORDS else "true or false"
    number = _parse_number(value)
    if number is None or (key.kind == "int" and number != int(number)):
        return "a whole number" if key.kind == "int" else "a number"
    return f"at least {key.minimum:g}" if key.minimum is not None and number < key.minimum else ""


def _parse_number(value: Any) -> float | None:
    """Return a value as a finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
