"""Lint rules for SGLang recipes: mistakes that SGLang reports late or not at all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from sparkwright.engines import shared_rules
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Fix, Rules, Severity
from sparkwright.engines.flags import ModelRole, parse_adapters, pin_adapter_fix, pin_model_fix
from sparkwright.engines.sglang import flags
from sparkwright.engines.shared_rules import (
    OptionCase,
    key_in_arguments,
    locking_flags,
    unknown_flags,
    unreachable_host,
    wrong_published_port,
)
from sparkwright.trust.image_name import without_digest
from sparkwright.visible import one_line

SOURCE = f"SGLang {flags.SOURCE_RELEASE}, source"
#: flags whose value SGLang downloads from the hub unless it is a path
DOWNLOAD_FLAGS: Mapping[str, ModelRole] = {"speculative-draft-model-path": "draft", "tokenizer-path": "tokenizer"}
ADAPTERS_FLAG = "lora-paths"
#: former names of options, by the new name. Newer releases accept both
FORMER_NAMES: Mapping[str, str] = {
    "grpc-http-sidecar-port": "smg-http-sidecar-port",
    "hierarchical-sparse-attention-extra-config": "hisparse-config",
}
#: share that works on a GB10 with CUDA graphs; 0.75 led to swapping (sglang #34872)
SUGGESTED_MEMORY_SHARE = 0.7
#: images whose tag is not that of a release
MOVING_TAG_PATTERN = re.compile(r"^(?:docker\.io/)?lmsysorg/sglang(?::(?!v\d)[\w.-]+|(?=@|$))")
#: variable that allows a context longer than the model's, at the user's risk
LONG_CONTEXT_VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
#: an image built with CUDA 12, by its tag: those of older releases have no suffix, and -cu130 is their variant with CUDA 13
CUDA_12_IMAGE_PATTERN = re.compile(
    r"^(?:docker\.io/)?lmsysorg/sglang:(?:[\w.-]*cu12\d|v(?P<release>\d+\.\d+\.\d+)(?!.*cu13))"
)
FIRST_RELEASE_WITH_CUDA_13 = "0.5.11"


@dataclass(frozen=True)
class Case(OptionCase):
    """The input to the rules."""

    #: the model's maximum sequence length in tokens; None if unknown
    model_maximum: int | None = None

    ENGINE, TITLE, HISTORY = "sglang", "SGLang", flags.HISTORY

    def listed_names(self, name: str) -> tuple[str, ...]:
        return name, FORMER_NAMES.get(name, name)

    def is_before(self, release: str) -> bool:
        """Return True if this engine is older than a release, or its release is unknown. False for an empty release."""
        return bool(release) and (self.release is None or Version(self.release) < Version(release))

    def is_after(self, release: str) -> bool:
        """Return True if this engine is known to be newer than a release. Any known engine is newer than an empty release."""
        return self.release is not None and (not release or Version(self.release) > Version(release))


RuleFunction = Callable[[Case], Iterable[Finding]]

RULES: Rules[Case, Case] = Rules(
    describe_example=lambda case: {
        "engine": "sglang",
        "flags": case.request.flags,
        "image": case.request.image,
        "version": flags.SOURCE_RELEASE,
    }
)


def rule(
    name: str,
    *,
    sources: Iterable[str],
    example: ServerRequest,
    version: str = flags.SOURCE_RELEASE,
    model_maximum: int | None = None,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule; see `Rules.rule`. `version` and `model_maximum` are fields of its example's Case (`version` as `release`)."""
    case = Case(replace(example, flags=flags.normalize(example.flags)), version, model_maximum=model_maximum)
    return RULES.rule(name, sources=sources, example=case)


@rule(
    "unknown-flag",
    sources=(
        f"the parsers of {flags.HISTORY.releases[0]} to {flags.SOURCE_RELEASE}, run without a GPU",
        "the image's help output",
    ),
    example=ServerRequest({"mamba-scheduler-strategy": "extra_buffer"}),
)
def unknown_flag(case: Case) -> Iterator[Finding]:
    """SGLang does not start with an unknown flag.
    Its parser exits with code 2, by which time the previous server has already been stopped. Flags are added, removed and renamed
    in nearly every release. The rule uses the image's help output, or else sparkwright's table of releases.
    """
    yield from unknown_flags(case, SOURCE)


@rule("flag-value", sources=(SOURCE,), example=ServerRequest({"mem-fraction-static": 85}))
def flag_value(case: Case) -> Iterator[Finding]:
    """A flag's value must be valid.
    SGLang's parser refuses some invalid values with exit code 2; others fail later, while the model is loaded.
    """
    for name in case.request.flags:
        if problem := flags.find_value_problem(case.request.flags, name):
            yield Finding("error", f"{name} {problem}.", (Fix("correct or remove it", {name: None}),), SOURCE, name)


@rule("memory-unset", sources=(SOURCE,), example=ServerRequest({"sleep-on-idle": True}))
def memory_unset(case: Case) -> Iterator[Finding]:
    """Without mem-fraction-static, SGLang's memory use cannot be checked before a start.
    SGLang then chooses a share, depending on the memory that is free at its start. The share includes weights and KV cache: if SGLang
    fails with "Not enough memory. Please try to increase --mem-fraction-static", the share is too small for the weights, so raise it.
    """
    if case.flag(flags.MEMORY) is None:
        fix = Fix(
            f"set {flags.MEMORY}, e.g. to {SUGGESTED_MEMORY_SHARE} for one server on a GB10",
            {flags.MEMORY: SUGGESTED_MEMORY_SHARE},
        )
        message = f"{flags.MEMORY} is not set: the server's memory use is unknown before it starts."
        yield Finding("warning", message, (fix,), SOURCE, flags.MEMORY)


@rule(
    "idle-spin",
    sources=("users' reports on a GB10: 97-101 % of a core without requests, 1.7 % with --sleep-on-idle",),
    example=ServerRequest({"mem-fraction-static": 0.8}),
)
def idle_spin(case: Case) -> Iterator[Finding]:
    """An idle SGLang keeps one core busy unless sleep-on-idle is set.
    On a GB10, CPU and GPU share the power and cooling that this core uses.
    """
    if case.request.platform == "gb10" and case.flag(flags.SLEEP_ON_IDLE) is not True:
        message = f"{flags.SLEEP_ON_IDLE} is not set: without requests SGLang keeps one core of the GB10 busy."
        fix = Fix(f"set {flags.SLEEP_ON_IDLE}", {flags.SLEEP_ON_IDLE: True})
        yield Finding("info", message, (fix,), "users' reports", flags.SLEEP_ON_IDLE)


@rule(
    "downloads",
    sources=(SOURCE,),
    example=ServerRequest({"speculative-draft-model-path": "org/draft"}),
)
def downloads(case: Case) -> Iterator[Finding]:
    """A model that SGLang downloads at startup is not pinned.
    SGLang fetches the current revision of a hub repository at every start, without checking spark.lock's hashes.
    """
    for name in DOWNLOAD_FLAGS:
        model = case.flag(name)
        if model is not None and not str(model).startswith("/"):
            fix = Fix("mount its folder (`container.volumes`) and write the path in the container", {name: None})
            fixes = (Fix(pin_model_fix(DOWNLOAD_FLAGS[name], one_line(str(model), max_chars=80)), {name: None}), fix)
            message = f"{name} {model} is downloaded at startup, and spark.lock does not pin it."
            yield Finding("error", message, fixes, SOURCE, name)
    for name, adapter in parse_adapters(case.flag(ADAPTERS_FLAG)):
        if not adapter.startswith("/"):
            message = f"{ADAPTERS_FLAG} {adapter} is downloaded at startup, and spark.lock does not pin it."
            fix = Fix(pin_adapter_fix(name, one_line(adapter, max_chars=80)))
            yield Finding("error", message, (fix,), SOURCE, ADAPTERS_FLAG)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A value of speculative-algorithm.

    It was added after `absent_in`, and at the latest in `present_in`: only some releases have been reviewed.
    """

    #: newest reviewed release without the algorithm; empty if all have it
    absent_in: str = ""
    #: oldest reviewed release with the algorithm; empty if all have it
    present_in: str = ""
    #: True if it needs speculative-draft-model-path; None if that depends on the model
    needs_drafter: bool | None = None


#: source: `SpeculativeAlgorithm` in srt/speculative/spec_info.py and the choices in srt/server_args.py of 0.5.6, 0.5.9, 0.5.11,
#: 0.5.13, 0.5.16, 0.5.19 and 0.5.23
ALGORITHMS: dict[str, Algorithm] = {
    "EAGLE": Algorithm(),
    "EAGLE3": Algorithm(),
    "NEXTN": Algorithm(),
    "STANDALONE": Algorithm(),
    "NGRAM": Algorithm(needs_drafter=False),
    "DFLASH": Algorithm("0.5.9", "0.5.11", needs_drafter=True),
    "FROZEN_KV_MTP": Algorithm("0.5.11", "0.5.13"),
    "DSPARK": Algorithm("0.5.13", "0.5.16"),
    "UNO": Algorithm("0.5.19", "0.5.23"),
}
#: from this release on, plugins may register other algorithms, and names are case-insensitive
FIRST_RELEASE_WITH_PLUGINS = "0.5.13"
ALGORITHM_FLAG = "speculative-algorithm"
DRAFT_FLAG = "speculative-draft-model-path"
#: without speculative-num-steps, SGLang exits with an AssertionError if one of the flags is set
STEPS_FLAG, FLAGS_WITH_STEPS = "speculative-num-steps", ("speculative-eagle-topk", "speculative-num-draft-tokens")
ALGORITHMS_WITH_STEPS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


@rule(
    "speculation",
    sources=(
        "srt/speculative/spec_info.py and srt/server_args.py of 0.5.6 to 0.5.23",
        "docs/speculation.md: what to measure, and how",
    ),
    example=ServerRequest({ALGORITHM_FLAG: "EAGEL3", DRAFT_FLAG: "/models/drafter"}),
)
def speculation(case: Case) -> Iterator[Finding]:
    """Speculative decoding needs an algorithm that this release supports, and usually a drafter.
    A drafter proposes tokens, and the model verifies them in one step. For an unknown algorithm, a missing drafter or an incomplete set
    of numbers, SGLang exits with a ValueError or an AssertionError, by which time the previous server has already been stopped.
    Without speculative-algorithm, the other flags of speculation have no effect. docs/speculation.md describes what to measure.
    """
    setting = case.flag(ALGORITHM_FLAG)
    names = (name for name in case.request.flags if name.startswith("speculative-") and not name.startswith(DRAFT_FLAG))
    other_flags = [name for name in names if case.flag(name) not in (None, False)]
    if setting is None:
        for name in other_flags[:1]:
            fix = Fix(f"set {ALGORITHM_FLAG}, or remove it", dict.fromkeys(other_flags))
            yield Finding("warning", f"{name} has no effect without {ALGORITHM_FLAG}.", (fix,), SOURCE, name)
        return
    is_old = case.release is not None and case.is_before(FIRST_RELEASE_WITH_PLUGINS)
    name = str(setting) if is_old else str(setting).upper()
    algorithm = ALGORITHMS.get(name)
    if algorithm is None or case.is_before(algorithm.present_in):
        yield from _unavailable_algorithm(case, name, algorithm)
    elif algorithm.needs_drafter and case.flag(DRAFT_FLAG) is None:
        message = f"{ALGORITHM_FLAG} {name} needs {DRAFT_FLAG}: SGLang refuses to start."
        yield Finding(
            "error", message, (Fix(f"mount a drafter and set {DRAFT_FLAG} to its path"),), SOURCE, ALGORITHM_FLAG
        )
    flags_needing_steps = [flag for flag in FLAGS_WITH_STEPS if case.flag(flag) is not None]
    has_steps = case.flag(STEPS_FLAG) is not None or case.flag("speculative-adaptive")
    if name in ALGORITHMS_WITH_STEPS and flags_needing_steps and not has_steps:
        message = f"{flags_needing_steps[0]} without {STEPS_FLAG}: SGLang exits with an AssertionError."
        yield Finding(
            "error", message, (Fix(f"set {STEPS_FLAG} too", {STEPS_FLAG: 1}),), SOURCE, flags_needing_steps[0]
        )


def _unavailable_algorithm(case: Case, name: str, algorithm: Algorithm | None) -> Iterator[Finding]:
    """Yield the finding about an algorithm that the release does not or may not have."""
    if algorithm is not None:
        is_certain = case.release is not None and not case.is_after(algorithm.absent_in)
        severity: Severity = "error" if is_certain else "warning"
        message = f"{ALGORITHM_FLAG} {name} is in SGLang {algorithm.present_in} and later."
        yield Finding(severity, message, (Fix("use another algorithm or another image"),), SOURCE, ALGORITHM_FLAG)
        return
    closest = next(iter(difflib.get_close_matches(name.upper(), ALGORITHMS, n=1)), "")
    fix = (
        Fix(f"write {closest}", {ALGORITHM_FLAG: closest}) if closest else Fix(f"choose one of {', '.join(ALGORITHMS)}")
    )
    severity = "error" if case.release is not None and case.is_before(FIRST_RELEASE_WITH_PLUGINS) else "warning"
    message = f"{ALGORITHM_FLAG} {one_line(name, max_chars=40)} is not an SGLang algorithm."
    yield Finding(severity, message, (fix,), SOURCE, ALGORITHM_FLAG)


@rule("api-key-in-arguments", sources=(SOURCE,), example=ServerRequest({"api-key": "sk-1"}))
def api_key(case: Case) -> Iterator[Finding]:
    """An API key in the flags is readable by every user of the host.
    `ps` and `docker inspect` show it. SGLang also prints all settings in its log, including a key that it read from elsewhere.
    """
    for name in flags.KEY_FLAGS:
        if case.flag(name):
            fix = Fix("remove it and write `publish: loopback`", {name: None})
            yield from key_in_arguments(name, fix, SOURCE)


@rule(
    "open-to-network",
    sources=("docker's documentation: a published port bypasses the host's firewall",),
    example=ServerRequest({}, open_to_network=True),
)
def open_to_network(case: Case) -> Iterator[Finding]:
    """A server published beyond loopback is open to everyone on the network.
    sparkwright does not set an API key for SGLang, because SGLang prints the key in its log.
    """
    yield from shared_rules.open_to_network(case.request, has_key=False)


@rule("no-metrics", sources=(SOURCE,), example=ServerRequest({"enable-metrics": False}))
def no_metrics(case: Case) -> Iterator[Finding]:
    """Without metrics, a stalled server looks like a busy server.
    sparkwright adds --enable-metrics; health checks compare the number of decoded tokens with the number at the previous check.
    """
    if case.flag(flags.METRICS) is False:
        fix = Fix("remove it", {flags.METRICS: None})
        yield Finding(
            "warning", f"{flags.METRICS} is off: checks cannot detect a stall.", (fix,), SOURCE, flags.METRICS
        )


@rule(
    "image-kernels",
    sources=(
        "SGLang's installation page: the last image with CUDA 12 is v0.5.19-cu129",
        "its notes on 0.5.11, in gpustack/gpustack 5285: the images without a suffix are built with CUDA 13 from this release on",
    ),
    example=ServerRequest({}, image="lmsysorg/sglang:v0.5.19-cu129"),
)
def image_kernels(case: Case) -> Iterator[Finding]:
    """A GB10 needs an image built with CUDA 13.
    Its compute capability is 12.1. The kernels in SGLang's CUDA 12 packages have no code for it ("no kernel image is available").
    """
    match = CUDA_12_IMAGE_PATTERN.match(case.request.image)
    if case.request.platform != "gb10" or match is None:
        return
    if match["release"] is None or Version(match["release"]) < Version(FIRST_RELEASE_WITH_CUDA_13):
        message = f"{without_digest(case.request.image)} is built with CUDA 12, without kernels for a GB10 (sm_121)."
        fix = Fix(
            f"use a release from {FIRST_RELEASE_WITH_CUDA_13} on without -cu12 in its tag, e.g. lmsysorg/sglang:v0.5.23"
        )
        yield Finding("warning", message, (fix,), "SGLang's installation page", "image")


@rule(
    "model-length",
    sources=("srt/configs/model_config.py of 0.5.9 and 0.5.23: the ValueError mentions the variable",),
    example=ServerRequest({flags.CONTEXT: 200000}),
    model_maximum=131072,
)
def model_length(case: Case) -> Iterator[Finding]:
    """context-length must not exceed the model's maximum context.
    SGLang derives the maximum from the model's config and refuses a larger value, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is
    set to 1. Beyond the maximum, the output is garbage or a GPU kernel fails.
    """
    requested = flags.context(case.request.flags)
    if (
        case.model_maximum is None
        or requested is None
        or requested <= case.model_maximum
        or case.flag("json-model-override-args")
    ):
        return
    is_allowed = str(case.request.env.get(LONG_CONTEXT_VARIABLE, "")).lower() in ("1", "true", "yes", "y")
    outcome = "output beyond it is garbage" if is_allowed else f"{case.engine} refuses to start"
    fix = Fix(f"lower {flags.CONTEXT} to {case.model_maximum}", {flags.CONTEXT: case.model_maximum})
    message = f"{flags.CONTEXT} {requested} exceeds the model's {case.model_maximum}: {outcome}."
    yield Finding("warning" if is_allowed else "error", message, (fix,), SOURCE, flags.CONTEXT)


@rule(
    "newer-release",
    sources=("sparkwright's tables: the newest release whose parser they cover",),
    example=ServerRequest({}),
    version="99.0.0",
)
def newer_release(case: Case) -> Iterator[Finding]:
    """The engine is newer than the newest release that sparkwright's tables cover.
    Options are checked against the engine's own `--help` only, and changes to log lines and metrics since then are unknown. A deploy's
    checks of the running server work as usual.
    """
    if case.is_after(flags.SOURCE_RELEASE):
        yield from shared_rules.newer_release(case.engine, flags.SOURCE_RELEASE)


@rule(
    "moving-tag",
    sources=("Docker Hub: latest and dev are re-pushed; tags for single models and days are deleted later",),
    example=ServerRequest({}, image="lmsysorg/sglang:latest"),
)
def moving_tag(case: Case) -> Iterator[Finding]:
    """A tag such as latest may point to another image tomorrow.
    spark.lock pins the digest, so that all hosts run the same image. However, the registry may delete an image that has lost its tag.
    """
    if MOVING_TAG_PATTERN.match(case.request.image):
        replacement = "the tag of a release, e.g. lmsysorg/sglang:v0.5.23"
        yield from shared_rules.moving_tag(case.request.image, replacement, "Docker Hub")


@rule(
    "out-of-reach",
    sources=("docker's documentation: a published port forwards to the container's own address",),
    example=ServerRequest({"host": "127.0.0.1"}),
)
def out_of_reach(case: Case) -> Iterator[Finding]:
    """The server must listen on the port that the container publishes, over HTTP.
    SGLang listens on loopback by default, so sparkwright adds --host 0.0.0.0. sparkwright's checks do not use HTTPS.
    """
    yield from unreachable_host(case, flags.HOST)
    yield from locking_flags(case, ("ssl-keyfile", "ssl-certfile"), "over plain HTTP", SOURCE)
    yield from wrong_published_port(case.request, flags.port(case.request.flags), flags.PORT)
