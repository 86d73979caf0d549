"""Rules about images and their platforms: tags, builds without support for this GPU, and Ascend-vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm import prediction
from sparkwright.engines.vllm.flags import flag_types
from sparkwright.engines.vllm.rules.rule import Case, Example, rule
from sparkwright.trust.image_name import tagged

OFFICIAL = re.compile(r"^(?:docker\.io/)?vllm/vllm-openai:(?P<tag>[\w.-]+)")
RELEASE_TAG = re.compile(r"^v(?P<major>\d+)\.(?P<minor>\d+)\.\d+(?P<rest>.*)$")
CUDA13_SINCE = (0, 20)
FROZEN = re.compile(r"^cu130-nightly(-aarch64)?$")
MOVING = ("latest", "nightly")


@rule(
    "cuda13-image",
    sources=(
        "vLLM #39878: releases are built with CUDA 13.0 from 0.20.0 on, with 12.9 before (-cu130 variants from 0.14 or so)",
        "vLLM's maintainers on GB10 reports: use CUDA 13 on these devices; the cu129 images have no sm_121 target",
    ),
    example=Example(image="vllm/vllm-openai:v0.17.1"),
)
def cuda13(case: Case) -> Iterator[Finding]:
    """A GB10 needs an image built with CUDA 13.
    Its compute capability is 12.1. Images built with CUDA 12.9 contain no code for it: they fail with a missing kernel or, worse,
    run slow fallbacks. The tag identifies the build here, not the engine's version.
    """
    tag = _tag(case)
    found = RELEASE_TAG.match(tag)
    if case.asked.platform != "gb10" or not tag:
        return
    rest = found["rest"] if found else tag
    old = found is not None and (int(found["major"]), int(found["minor"])) < CUDA13_SINCE and "cu130" not in rest
    if not old and "cu129" not in rest:
        return
    base = tag.replace("-cu129", "").replace("cu129-", "")
    other = f"{base}-cu130" if old and "cu129" not in rest else base
    sentence = f"{_ref(case)} is built with CUDA 12.9, which has no code for a GB10 (sm_121)."
    way = Way(f"use vllm/vllm-openai:{other}, or release 0.20 or newer")
    yield Finding("error", sentence, (way,), "vLLM #39878")


@rule(
    "frozen-nightly",
    sources=("vLLM #32522 and the pipeline since 2026-04-23: cu130-nightly is no longer pushed",),
    example=Example(image="vllm/vllm-openai:cu130-nightly"),
)
def frozen_nightly(case: Case) -> Iterator[Finding]:
    """The tag cu130-nightly has not moved since April 2026.
    It was pushed from January to 23 April 2026; `nightly` is the CUDA 13 build now. Pulling it today gives a build between 0.19
    and 0.20, whatever a guide says.
    """
    if FROZEN.match(_tag(case)):
        sentence = f"{_ref(case)} has not moved since April 2026: it is an old build, not a nightly."
        way = Way("use a release with CUDA 13, e.g. vllm/vllm-openai:v0.32.0")
        yield Finding("warning", sentence, (way,), "vLLM's image pipeline")


@rule(
    "newer-release",
    sources=("sparkwright's tables: the newest release whose options, models and log lines were read",),
    example=Example(image="vllm/vllm-openai:v99.0.0", version="99.0.0"),
)
def newer_release(case: Case) -> Iterator[Finding]:
    """The engine is newer than the newest release that sparkwright has read.
    Options that its own `--help` lists are taken as they are, and judged by no table; a default, a log line or a metric that changed
    since is not known. What a deploy proves is proved by the running server all the same.
    """
    if case.version is not None and case.version.release[:2] > Version(flag_types.NEWEST).release[:2]:
        sentence = (
            f"{case.engine} is newer than {flag_types.NEWEST}, the newest release that is known here: its options are judged by the "
            "image's own help, its defaults as those of that release."
        )
        way = Way("update sparkwright, if there is a newer one")
        yield Finding("info", sentence, (way,), f"read up to {flag_types.NEWEST}")


@rule(
    "moving-tag",
    sources=("Docker Hub: latest and nightly are re-pushed; only the newest 14 dated nightlies are kept",),
    example=Example(image="vllm/vllm-openai:nightly"),
)
def moving_tag(case: Case) -> Iterator[Finding]:
    """A tag such as latest may point to another image tomorrow.
    spark.lock pins its digest, so that all hosts run the same image; but a nightly is deleted from the registry after two weeks, and
    then only hosts that already have it can serve it.
    """
    if _tag(case) in MOVING:
        sentence = f"{_ref(case)} is a moving tag: spark.lock pins its current digest, which the registry may delete."
        way = Way("use the tag of a release")
        yield Finding("info", sentence, (way,), "vLLM's image pipeline")


def _ref(case: Case) -> str:
    return tagged(case.asked.image)


def _tag(case: Case) -> str:
    found = OFFICIAL.match(case.asked.image)
    return found["tag"] if found else ""


SOURCE = "Ascend-vLLM's guide to its features and scheduler"
CHUNKED = {prediction.CONFIG: {prediction.SCHEDULER: {prediction.ENABLED: True, prediction.CHUNKED: True}}}


@rule(
    "ascend-exclusive",
    sources=(SOURCE,),
    example=Example({"enable-prefix-caching": True, **CHUNKED}, platform="ascend"),
)
def exclusive(case: Case) -> Iterator[Finding]:
    """On Ascend chunked prefill excludes prefix caching and a quantised KV cache.
    Turn one of them off; Ascend's scheduler disables chunked prefill unless chunked_prefill_enabled is set.
    """
    if case.asked.platform != "ascend" or case.effective.chunked_prefill is not True:
        return
    off = Way("turn chunked prefill off", prediction.with_scheduler(case.asked.flags, enabled=True, chunked=False))
    if case.flag("enable-prefix-caching") is True:
        ways = (off, Way("turn prefix caching off", {"enable-prefix-caching": False}))
        sentence = "chunked prefill and prefix caching exclude each other on Ascend."
        yield Finding("error", sentence, ways, SOURCE, "enable-prefix-caching")
    if str(case.flag("kv-cache-dtype") or "auto") != "auto":
        ways = (off, Way("use an unquantised KV cache", {"kv-cache-dtype": None}))
        sentence = "chunked prefill and a quantised KV cache exclude each other on Ascend."
        yield Finding("error", sentence, ways, SOURCE, "kv-cache-dtype")


@rule(
    "ascend-budget",
    sources=(SOURCE,),
    example=Example({"max-num-batched-tokens": 1000, "max-model-len": 4096}, platform="ascend"),
)
def budget(case: Case) -> Iterator[Finding]:
    """On Ascend max-num-batched-tokens must be a multiple of 256, and at least max-model-len.
    Its kernels process blocks of 256 tokens, and its scheduler does not split prompts.
    """
    now = case.effective
    if case.asked.platform != "ascend" or now.budget is None:
        return
    least = max(prediction.BUDGET_STEP, now.max_model_len or 0)
    wanted = -(-max(least, now.budget) // prediction.BUDGET_STEP) * prediction.BUDGET_STEP
    if wanted != now.budget:
        sentence = f"max-num-batched-tokens {now.budget} must be a multiple of {prediction.BUDGET_STEP} and at least {least} on Ascend."
        way = Way(f"set it to {wanted}", {"max-num-batched-tokens": wanted})
        yield Finding("error", sentence, (way,), SOURCE, "max-num-batched-tokens")


@rule(
    "ascend-scheduler",
    sources=(SOURCE,),
    example=Example(
        {"enable-chunked-prefill": True, prediction.CONFIG: {prediction.SCHEDULER: {prediction.ENABLED: True}}},
        platform="ascend",
    ),
)
def scheduler(case: Case) -> Iterator[Finding]:
    """Ascend's own scheduler turns chunked prefill off.
    ascend_scheduler_config.enabled does so unless chunked_prefill_enabled is set with it; --enable-chunked-prefill is then ignored.
    """
    if case.asked.platform != "ascend" or not prediction.scheduler(case.asked.flags).get(prediction.ENABLED):
        return
    if case.flag("enable-chunked-prefill") is True and case.effective.chunked_prefill is False:
        change = prediction.with_scheduler(case.asked.flags, enabled=True, chunked=True)
        sentence = "ascend_scheduler_config.enabled turns chunked prefill off despite enable-chunked-prefill."
        way = Way("also set chunked_prefill_enabled", {prediction.CONFIG: change[prediction.CONFIG]})
        yield Finding("error", sentence, (way,), SOURCE, prediction.CONFIG)
