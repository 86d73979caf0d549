"""Rules about images (tags, CUDA builds, Ascend-vLLM) and models (support, context length, downloads, plugins)."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from sparkwright.engines import shared_rules
from sparkwright.engines.findings import Finding, Fix
from sparkwright.engines.flags import ModelRole, parse_adapters, pin_adapter_fix, pin_model_fix
from sparkwright.engines.model import config_parts
from sparkwright.engines.vllm import options, prediction
from sparkwright.engines.vllm.architecture_support import SUPPORT, describe_support, is_supported
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL, Case, Example, rule
from sparkwright.engines.vllm.speculation import CONFIG_FLAG
from sparkwright.engines.vllm.versions import at_least
from sparkwright.trust.image_name import without_digest
from sparkwright.visible import one_line

OFFICIAL_IMAGE_PATTERN = re.compile(r"^(?:docker\.io/)?vllm/vllm-openai(?::(?P<tag>[\w.-]+)|(?=@|$))")
RELEASE_TAG_PATTERN = re.compile(r"^v(?P<major>\d+)\.(?P<minor>\d+)\.\d+(?P<rest>.*)$")
FIRST_RELEASE_WITH_CUDA13_TAGS = (0, 20)
FIRST_RELEASE_WITH_CU130_VARIANT = (0, 14)
FROZEN_TAG_PATTERN = re.compile(r"^cu130-nightly(-aarch64)?$")
MOVING_TAGS = ("latest", "nightly")
#: allows a context longer than the model's, at the user's risk. Source: the engine's error message
LONG_CONTEXT_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"

ADAPTERS_FLAG = "lora-modules"
OVERRIDES_FLAG, EXPERTS_KEY = "hf-overrides", "num_experts_per_tok"
PLUGIN_FLAGS = ("tool-parser-plugin", "reasoning-parser-plugin")
#: variables with the folder of gpt-oss's vocabulary; openai_harmony in vLLM 0.32.0 reads the first
VOCABULARY_VARIABLES = ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR")
#: values of `speculative-config.model` that name a method
METHOD_NAMES = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")
#: roles in spark.lock of the models that these flags and keys name
MODEL_ROLES: Mapping[str, ModelRole] = {"tokenizer": "tokenizer", f"{CONFIG_FLAG}.model": "draft"}
#: flags and keys with a second model, tokenizer or configuration; source: vLLM 0.32.0, config/model.py and config/speculative.py
DOWNLOAD_FLAGS = ("tokenizer", "hf-config-path", f"{CONFIG_FLAG}.model", f"{CONFIG_FLAG}.tokenizer")

ASCEND_SOURCE = "Ascend-vLLM's guide to its features and scheduler"
CHUNKED_SCHEDULER = {
    prediction.ASCEND_CONFIG: {
        prediction.ASCEND_SCHEDULER: {prediction.SCHEDULER_ENABLED: True, prediction.SCHEDULER_CHUNKED: True}
    }
}


@rule(
    "cuda13-image",
    sources=(
        "vLLM #39878: releases are built with CUDA 13.0 from 0.20.0 on, with 12.9 before (-cu130 variants from about 0.14 on)",
        "vLLM's maintainers on reports from GB10 users: use CUDA 13 on these devices; the cu129 images have no sm_121 target",
    ),
    example=Example(image="vllm/vllm-openai:v0.17.1"),
)
def cuda13(case: Case) -> Iterator[Finding]:
    """A GB10 needs an image built with CUDA 13.
    Its compute capability is 12.1. Images built with CUDA 12.9 contain no code for it: they fail with a missing kernel or, worse,
    run slow fallbacks. The rule reads the CUDA version from the image's tag.
    """
    tag = _official_tag(case)
    match = RELEASE_TAG_PATTERN.match(tag)
    if case.request.platform != "gb10" or not tag:
        return
    variant = match["rest"] if match else tag
    is_old = (
        match is not None
        and (int(match["major"]), int(match["minor"])) < FIRST_RELEASE_WITH_CUDA13_TAGS
        and "cu130" not in variant
    )
    if not is_old and "cu129" not in variant:
        return
    base = tag.replace("-cu129", "").replace("cu129-", "")
    replacement = f"{base}-cu130" if is_old and "cu129" not in variant else base
    message = f"{without_digest(case.request.image)} is built with CUDA 12.9, which has no code for a GB10 (sm_121)."
    has_replacement = (
        match is None or not is_old or (int(match["major"]), int(match["minor"])) >= FIRST_RELEASE_WITH_CU130_VARIANT
    )
    fix = Fix(
        f"use vllm/vllm-openai:{replacement}, or release 0.20 or newer"
        if has_replacement
        else "use release 0.20 or newer"
    )
    yield Finding("error", message, (fix,), "vLLM #39878")


@rule(
    "frozen-nightly",
    sources=("vLLM #32522 and the pipeline since 2026-04-23: cu130-nightly is no longer pushed",),
    example=Example(image="vllm/vllm-openai:cu130-nightly"),
)
def frozen_nightly(case: Case) -> Iterator[Finding]:
    """The tag cu130-nightly has not been updated since April 2026.
    It was pushed from January to 23 April 2026, and is a build between 0.19 and 0.20. Some guides still recommend it. The CUDA 13 build
    is now `nightly`.
    """
    if FROZEN_TAG_PATTERN.match(_official_tag(case)):
        image = without_digest(case.request.image)
        message = f"{image} has not been updated since April 2026: it is an old build, not a nightly."
        fix = Fix("use a release with CUDA 13, e.g. vllm/vllm-openai:v0.32.0")
        yield Finding("warning", message, (fix,), "vLLM's image pipeline")


@rule(
    "newer-release",
    sources=("sparkwright's tables: the newest release whose options, models and log lines they cover",),
    example=Example(image="vllm/vllm-openai:v99.0.0", version="99.0.0"),
)
def newer_release(case: Case) -> Iterator[Finding]:
    """The engine is newer than the newest release that sparkwright's tables cover.
    Options are checked against the engine's own `--help` only, and changes of defaults, log lines and metrics since then are unknown.
    The checks of a deploy against the running server work as usual.
    """
    if case.version is not None and case.version.release[:2] > Version(options.NEWEST_REFERENCE_RELEASE).release[:2]:
        note = ", and its defaults are assumed to be those of that release"
        yield from shared_rules.newer_release(case.engine, options.NEWEST_REFERENCE_RELEASE, consequence=note)


@rule(
    "moving-tag",
    sources=("Docker Hub: latest and nightly are re-pushed; only the newest 14 dated nightlies are kept",),
    example=Example(image="vllm/vllm-openai:nightly"),
)
def moving_tag(case: Case) -> Iterator[Finding]:
    """A tag such as latest may point to another image tomorrow.
    spark.lock pins the digest, so that all hosts run the same image. However, the registry deletes a nightly after two weeks, and then
    only hosts that already have the image can run it.
    """
    if _official_tag(case) in MOVING_TAGS:
        yield from shared_rules.moving_tag(case.request.image, "the tag of a release", "vLLM's image pipeline")


def _official_tag(case: Case) -> str:
    match = OFFICIAL_IMAGE_PATTERN.match(case.request.image)
    return (match["tag"] or "latest") if match else ""


@rule(
    "ascend-exclusive",
    sources=(ASCEND_SOURCE,),
    example=Example({"enable-prefix-caching": True, **CHUNKED_SCHEDULER}, platform="ascend"),
)
def exclusive(case: Case) -> Iterator[Finding]:
    """On Ascend, chunked prefill cannot be combined with prefix caching or a quantized KV cache.
    Turn one of them off. Ascend's scheduler turns chunked prefill off unless chunked_prefill_enabled is set.
    """
    if case.request.platform != "ascend" or case.effective_settings.chunked_prefill is not True:
        return
    off_fix = Fix(
        "turn chunked prefill off", prediction.set_ascend_scheduler(case.request.flags, enabled=True, chunked=False)
    )
    if case.flag("enable-prefix-caching") is True:
        fixes = (off_fix, Fix("turn prefix caching off", {"enable-prefix-caching": False}))
        message = "chunked prefill and prefix caching exclude each other on Ascend."
        yield Finding("error", message, fixes, ASCEND_SOURCE, "enable-prefix-caching")
    if str(case.flag("kv-cache-dtype") or "auto") != "auto":
        fixes = (off_fix, Fix("use an unquantized KV cache", {"kv-cache-dtype": None}))
        message = "chunked prefill and a quantized KV cache exclude each other on Ascend."
        yield Finding("error", message, fixes, ASCEND_SOURCE, "kv-cache-dtype")


@rule(
    "ascend-budget",
    sources=(ASCEND_SOURCE,),
    example=Example({"max-num-batched-tokens": 1000, "max-model-len": 4096}, platform="ascend"),
)
def budget(case: Case) -> Iterator[Finding]:
    """On Ascend, max-num-batched-tokens must be a multiple of 256 and at least max-model-len.
    Ascend's kernels process blocks of 256 tokens, and its scheduler does not split prompts.
    """
    settings = case.effective_settings
    if case.request.platform != "ascend" or settings.budget is None:
        return
    minimum = max(prediction.ASCEND_BUDGET_STEP, settings.max_model_len or 0)
    rounded_budget = -(-max(minimum, settings.budget) // prediction.ASCEND_BUDGET_STEP) * prediction.ASCEND_BUDGET_STEP
    if rounded_budget != settings.budget:
        message = f"max-num-batched-tokens {settings.budget} must be a multiple of {prediction.ASCEND_BUDGET_STEP} and at least {minimum} on Ascend."
        fix = Fix(f"set it to {rounded_budget}", {"max-num-batched-tokens": rounded_budget})
        yield Finding("error", message, (fix,), ASCEND_SOURCE, "max-num-batched-tokens")


@rule(
    "ascend-scheduler",
    sources=(ASCEND_SOURCE,),
    example=Example(
        {
            "enable-chunked-prefill": True,
            prediction.ASCEND_CONFIG: {prediction.ASCEND_SCHEDULER: {prediction.SCHEDULER_ENABLED: True}},
        },
        platform="ascend",
    ),
)
def scheduler(case: Case) -> Iterator[Finding]:
    """Ascend's scheduler turns chunked prefill off.
    If ascend_scheduler_config.enabled is set without chunked_prefill_enabled, --enable-chunked-prefill is ignored.
    """
    if case.request.platform != "ascend" or not prediction.ascend_scheduler(case.request.flags).get(
        prediction.SCHEDULER_ENABLED
    ):
        return
    if case.flag("enable-chunked-prefill") is True and case.effective_settings.chunked_prefill is False:
        change = prediction.set_ascend_scheduler(case.request.flags, enabled=True, chunked=True)
        message = "ascend_scheduler_config.enabled turns chunked prefill off despite enable-chunked-prefill."
        fix = Fix("also set chunked_prefill_enabled", {prediction.ASCEND_CONFIG: change[prediction.ASCEND_CONFIG]})
        yield Finding("error", message, (fix,), ASCEND_SOURCE, prediction.ASCEND_CONFIG)


@rule(
    "downloads",
    sources=(
        "vLLM 0.32.0, config/speculative.py: `model` is a path or a name on the hub",
        "sgl-project/sglang 35860: a draft model's repository is part of the supply chain",
    ),
    example=Example({CONFIG_FLAG: {"method": "dflash", "model": "org/draft", "num_speculative_tokens": 8}}),
)
def downloads(case: Case) -> Iterator[Finding]:
    """A model that vLLM downloads at startup is not pinned.
    vLLM fetches the current revision of a hub repository at every start, without checking spark.lock's hashes, and does not start on a
    host without internet (or with HF_HUB_OFFLINE=1). Mount a pinned model and use its path in the container instead.
    """
    for name in DOWNLOAD_FLAGS:
        model = _flag_or_key(case, name)
        if isinstance(model, str) and model and not model.startswith("/") and model not in METHOD_NAMES:
            flag, _, key = name.partition(".")
            path = f"/models/{model.rpartition('/')[2]}"
            mounted = {**(case.request.speculative_config() or {}), key: path} if key else path
            fix = Fix(f"mount its folder (`container.volumes`) and use its path there, e.g. {path}", {flag: mounted})
            role = MODEL_ROLES.get(name)
            fixes = (Fix(pin_model_fix(role, one_line(model, max_chars=80))), fix) if role else (fix,)
            message = f"{name.replace('.', ' ')} {model} is downloaded at startup, and spark.lock does not pin it."
            yield Finding("error", message, fixes, "vLLM 0.32.0", flag)
    for name, adapter in parse_adapters(case.flag(ADAPTERS_FLAG)):
        if not adapter.startswith("/"):
            message = f"{ADAPTERS_FLAG} {adapter} is downloaded at startup, and spark.lock does not pin it."
            fixes = (Fix(pin_adapter_fix(name, one_line(adapter, max_chars=80))),)
            yield Finding("error", message, fixes, "vLLM 0.32.0", ADAPTERS_FLAG)
    is_offline = case.request.env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    has_vocabulary = any(map(case.request.env.get, VOCABULARY_VARIABLES))
    if case.architecture.model_type == "gpt_oss" and is_offline and not has_vocabulary:
        message = (
            "the vocabulary of gpt-oss is downloaded at startup, even with HF_HUB_OFFLINE: "
            f"{VOCABULARY_VARIABLES[0]} is not set."
        )
        fix = Fix(f"mount a folder with o200k_base.tiktoken and set {VOCABULARY_VARIABLES[0]} to its path")
        yield Finding("warning", message, (fix,), "openai_harmony", "env")


@rule(
    "plugin-unpinned",
    sources=(
        "vLLM 0.32.0, tool_parsers and reasoning: --tool-parser-plugin and --reasoning-parser-plugin import a Python file by path",
        "nvidia/NVIDIA-Nemotron-3 model cards: the parser is a file of the model's own repository",
    ),
    example=Example({"tool-parser-plugin": "/plugins/parser.py"}, container={"volumes": ["~/plugins:/plugins:ro"]}),
)
def plugin_unpinned(case: Case) -> Iterator[Finding]:
    """A parser plugin is code, and must be pinned like the image.
    A file in the model's repository is pinned by the commit, a file in the recipe's `files:` by its content, and a file in the image by
    the digest. A file in a folder of the host is not pinned: anyone who can write there can run code in the server at its next start.
    """
    volumes = [
        str(volume).split(":")[1] for volume in case.request.container.get("volumes") or () if ":" in str(volume)
    ]
    for flag in PLUGIN_FLAGS:
        plugin = case.flag(flag)
        if not isinstance(plugin, str) or not plugin:
            continue
        path = posixpath.normpath(plugin)
        mount = next((mount for mount in case.request.pinned_files if path.startswith(f"{mount}/")), "")
        files, plugin_text = case.request.pinned_files.get(mount, ()), one_line(plugin, max_chars=120)
        fixes = (Fix("put it into the project and mount it with `files:`"), Fix("build it into the image"))
        if mount and files and path.removeprefix(f"{mount}/") not in files:
            message = f"{flag} {plugin_text} is not in the pinned commit: the server does not start."
            yield Finding("error", message, fixes, "spark.lock", flag)
        elif not mount and any(path.startswith(f"{posixpath.normpath(volume)}/") for volume in volumes):
            message = f"{flag} {plugin_text} is code that runs in the server, and spark.lock does not pin it."
            yield Finding("error", message, fixes, "vLLM 0.32.0", flag)


@rule(
    "stretched-context",
    sources=("the model's config.json: rope_scaling with original_max_position_embeddings",),
    example=Example(
        {"max-model-len": 1048576},
        model={
            **DENSE_MODEL,
            "max_position_embeddings": 1048576,
            "rope_scaling": {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
        },
    ),
)
def stretched_context(case: Case) -> Iterator[Finding]:
    """A context beyond the trained length degrades answers.
    With rope scaling (such as yarn) a model accepts prompts longer than those it was trained on. How well it uses them depends on the
    model; check with a long prompt in `expect.probes`.
    """
    trained_length, context = (
        config_parts.trained_length(case.architecture.config),
        case.effective_settings.max_model_len,
    )
    if trained_length and context and context > trained_length:
        message = f"max-model-len {context} is beyond the {trained_length} tokens that the model was trained on (rope scaling)."
        fix = Fix(f"for the trained length, set max-model-len to {trained_length}", {"max-model-len": trained_length})
        yield Finding("info", message, (fix,), "the model's config.json", "max-model-len")


@rule(
    "experts-per-token",
    sources=(
        "model-serving-minefield 33: 32 experts instead of 8 cost points of a benchmark; their weights are scaled to a sum of 1",
        "vLLM 0.32.0, config/model.py: --hf-overrides changes the model's config.json",
    ),
    example=Example({OVERRIDES_FLAG: {EXPERTS_KEY: 16}}, model={**DENSE_MODEL, "num_experts": 128, EXPERTS_KEY: 8}),
)
def experts_per_token(case: Case) -> Iterator[Finding]:
    """The number of experts per token should be the one that the model was trained with.
    More experts are slower but not better: the weights of the selected experts are scaled to a sum of 1, so the best ones count less.
    The log does not show the change.
    """
    overrides = case.flag(OVERRIDES_FLAG)
    try:
        override_config = json.loads(overrides) if isinstance(overrides, str) else overrides
    except ValueError:
        return
    if not isinstance(override_config, Mapping):
        return
    text_config = override_config.get("text_config")
    configs = (override_config, text_config if isinstance(text_config, Mapping) else {})
    requested = next((config[EXPERTS_KEY] for config in configs if EXPERTS_KEY in config), None)
    config = case.architecture.config
    trained_experts = config.get(EXPERTS_KEY) or (config.get("text_config") or {}).get(EXPERTS_KEY)
    if requested is not None and trained_experts and requested != trained_experts:
        remaining = {
            key: value for key, value in override_config.items() if key not in (EXPERTS_KEY, "text_config")
        } or None
        message = f"{OVERRIDES_FLAG}: {one_line(str(requested), max_chars=20)} experts per token, but the model was trained with {trained_experts}."
        fix = Fix("remove it", {OVERRIDES_FLAG: remaining})
        yield Finding("warning", message, (fix,), "the model's config.json", OVERRIDES_FLAG)


def _flag_or_key(case: Case, name: str) -> Any:
    """Return the value of a flag, or of a key in its JSON such as "speculative-config.model"."""
    flag, _, key = name.partition(".")
    return (case.request.speculative_config() or {}).get(key) if key else case.flag(flag)


@rule(
    "architecture-support",
    sources=(
        "vLLM's model registries from 0.10.2 to 0.33.0, read from their wheels",
        "#34110: Qwen3.5 is in 0.17.0 and later, not in 0.16.0",
        "vLLM's registry: for other architectures it tries the implementation in Transformers, which has no recurrent models",
    ),
    example=Example({}, model=HYBRID_MODEL, version="0.16.0"),
)
def architecture_support(case: Case) -> Iterator[Finding]:
    """The engine must support the model's architecture.
    vLLM refuses models that are newer than itself ("Model architectures [...] are not supported"), and a few that later releases no
    longer support. A dense model that vLLM does not implement may still run with the slower implementation in Transformers, if the image's
    version of Transformers is new enough.
    """
    name = case.architecture.name
    if case.version is None or is_supported(name, str(case.version)) is not False:
        return
    support = SUPPORT[name]
    is_dropped = support.until is not None and at_least(case.version, support.until)
    release = support.until if is_dropped else support.since
    is_dense = case.architecture.kind == "dense" and not is_dropped
    verb = "no longer loads" if is_dropped else "does not implement" if is_dense else "cannot load"
    message = f"vLLM {case.version} {verb} {name} ({describe_support(name)})."
    fixes = (Fix(f"use an image with vLLM {release}{'' if is_dropped else ' or newer'}"),) if release else ()
    yield Finding("warning" if is_dense else "error", message, fixes, "vLLM's model registries")


@rule(
    "model-length",
    sources=("vLLM's ModelConfig: derived max_model_len", "0.32.0, a real start: exit 1"),
    example=Example({"max-model-len": 200000}, model=DENSE_MODEL),
)
def model_length(case: Case) -> Iterator[Finding]:
    """max-model-len must not exceed the model's maximum context.
    The engine derives the maximum from the model's config and refuses a larger value, unless the environment variable
    VLLM_ALLOW_LONG_MAX_MODEL_LEN is set or rope scaling is overridden. Output beyond the maximum is garbage.
    """
    settings, model_maximum = case.effective_settings, case.architecture.max_position_embeddings
    if (
        model_maximum is None
        or settings.max_model_len is None
        or settings.max_model_len <= model_maximum
        or case.flag("hf-overrides") is not None
    ):
        return
    is_allowed = LONG_CONTEXT_VARIABLE in case.request.env
    outcome = "output beyond it is garbage" if is_allowed else f"{case.engine} refuses to start"
    fix = Fix(f"lower max-model-len to {model_maximum}", {"max-model-len": model_maximum})
    message = f"max-model-len {settings.max_model_len} exceeds the model's {model_maximum}: {outcome}."
    source = "vLLM's ModelConfig; a real start of 0.32.0"
    yield Finding("warning" if is_allowed else "error", message, (fix,), source, "max-model-len")
