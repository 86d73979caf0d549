"""Lint rules for llama.cpp recipes: mistakes that llama-server reports late or not at all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sparkwright.engines import shared_rules
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.llama_cpp import flags
from sparkwright.engines.llama_cpp.files import SUFFIX
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


@dataclass(frozen=True)
class Case(OptionCase):
    """The input to the rules."""

    ENGINE, TITLE, HISTORY = "llama_cpp", "llama.cpp", flags.HISTORY

    @property
    def engine(self) -> str:
        return super().engine if self.release else "llama-server"

    @property
    def build(self) -> int | None:
        """The build number; None if unknown."""
        return int(self.release.lstrip("b")) if self.release else None


RuleFunction = Callable[[Case], Iterable[Finding]]

RULES: Rules[Case, Case] = Rules(
    describe_example=lambda case: {
        "engine": "llama_cpp",
        "flags": case.request.flags,
        "image": case.request.image,
        "version": case.release,
    }
)


def rule(
    name: str, *, sources: Iterable[str], example: ServerRequest, build: int = flags.NEWEST_BUILD
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule; see `Rules.rule`. `build` is the build of its example."""
    case = Case(replace(example, flags=flags.normalize(example.flags)), f"b{build}")
    return RULES.rule(name, sources=sources, example=case)


#: smallest number that is commonly used for "all layers" (99, 999); no current model has so many layers
MIN_ALL_LAYERS = 99
OFFICIAL_IMAGE_PATTERN = re.compile(r"^ghcr\.io/ggml-org/llama\.cpp:(?P<tag>[\w.-]+)")
HELP_SOURCE = "llama-server --help"
OVERRIDES_FLAG = "override-kv"
#: flags that download an unpinned model when the server starts
DOWNLOAD_FLAGS = ("hf-repo", "hf-file", "hf-repo-draft", "model-url", "mmproj-url", "docker-repo")
#: for each value of --spec-type, whether it needs a second model. Source: the help of b10434 and of b11549, which agree
SPEC_TYPES: dict[str, bool] = {
    "none": False,
    "draft-simple": True,
    "draft-eagle3": True,
    "draft-mtp": False,
    "draft-dflash": True,
    "draft-dspark": True,
    "ngram-simple": False,
    "ngram-map-k": False,
    "ngram-map-k4v": False,
    "ngram-mod": False,
    "ngram-cache": False,
}
SPEC_TYPE_FLAG, DRAFT_FLAG, MAX_DRAFTS_FLAG, MIN_DRAFTS_FLAG = (
    "spec-type",
    "model-draft",
    "spec-draft-n-max",
    "spec-draft-n-min",
)


@rule(
    "model-file",
    sources=("llama-server loads a .gguf file, and other shards from the same folder; it does not accept a folder",),
    example=ServerRequest({"ctx-size": 8192}),
)
def model_file(case: Case) -> Iterator[Finding]:
    """llama.cpp needs a GGUF file instead of a folder.
    A repository often contains a dozen quantizations of a model. `model.file` in the recipe selects one by a pattern; sparkwright passes
    it, or its first shard, as --model.
    """
    model = case.flag(flags.MODEL)
    if model is None:
        fix = Fix("name it in the recipe, e.g. `model.file: NAME-Q4_K_M.gguf`")
        yield Finding("error", "the recipe names no GGUF file.", (fix,), HELP_SOURCE, flags.MODEL)
        return
    shard = re.search(r"-(\d{5})-of-\d{5}\.gguf$", str(model))
    if not str(model).lower().endswith(SUFFIX):
        message = f"model is {model}: llama.cpp serves only {SUFFIX} files."
        yield Finding("error", message, (Fix("name a GGUF file"),), HELP_SOURCE, flags.MODEL)
    elif shard and shard[1] != "00001":
        name = str(model).replace(f"-{shard[1]}-of-", "-00001-of-")
        message = f"model is shard {int(shard[1])}: llama.cpp needs the first shard of a model."
        yield Finding("error", message, (Fix(f"write {name}", {flags.MODEL: name}),), HELP_SOURCE, flags.MODEL)


@rule("downloads", sources=(HELP_SOURCE,), example=ServerRequest({"model": "a.gguf", "hf": "org/repo:Q4_K_M"}))
def downloads(case: Case) -> Iterator[Finding]:
    """A model that llama-server downloads at startup is not pinned.
    -hf and similar flags fetch the current file at every start. Neither the file's hash nor the memory that it needs is checked.
    """
    names = case.request.flags
    presets = [name for name in names if name.endswith("-default") and name != "spec-default"]
    fim_presets = [name for name in names if name.startswith("fim-") and name.endswith("-spec")]
    for name in (*DOWNLOAD_FLAGS, *presets, *fim_presets):
        if case.flag(name) not in (None, False):
            fix = Fix("remove it: `model.id` and `model.file` select what is downloaded and pinned", {name: None})
            message = f"{name} makes llama-server download a model that spark.lock does not pin."
            yield Finding("error", message, (fix,), HELP_SOURCE, name)


@rule(
    "speculation",
    sources=(
        f"{HELP_SOURCE} of b10434 and b11549: --spec-type, --spec-draft-*",
        "b11549, a real start: the server exits if the drafter cannot be read (tests/data/llama-b11549/missing-draft)",
        "docs/speculation.md: what to measure, and how",
    ),
    example=ServerRequest({"model": "a.gguf", SPEC_TYPE_FLAG: "draft-eagel3", DRAFT_FLAG: "/models/draft.gguf"}),
)
def speculation(case: Case) -> Iterator[Finding]:
    """Speculative decoding needs a type that llama-server supports, and usually a drafter.
    A drafter proposes tokens, and the model verifies them in one step. --spec-type accepts one or more types: draft-mtp drafts with
    layers in the model's own file, the other draft-* types with a second GGUF file, which must be mounted. docs/speculation.md
    describes what to measure.
    """
    setting = case.flag(SPEC_TYPE_FLAG)
    types = [word.strip() for word in str(setting).split(",")] if setting is not None else []
    for spec_type in types:
        if spec_type not in SPEC_TYPES:
            closest = next(iter(difflib.get_close_matches(spec_type.lower(), SPEC_TYPES, n=1)), "")
            if closest:
                corrected = ",".join(closest if other == spec_type else other for other in types)
                fix = Fix(f"write {closest}", {SPEC_TYPE_FLAG: corrected})
            else:
                fix = Fix(f"choose one of {', '.join(SPEC_TYPES)}")
            is_certain = case.build is not None and case.build <= flags.NEWEST_BUILD
            message = f"{SPEC_TYPE_FLAG} {one_line(spec_type, max_chars=40)} is not a type of speculation."
            yield Finding("error" if is_certain else "warning", message, (fix,), HELP_SOURCE, SPEC_TYPE_FLAG)
        elif SPEC_TYPES[spec_type] and case.flag(DRAFT_FLAG) is None and case.flag("hf-repo-draft") is None:
            fix = Fix(f"mount a drafter and set {DRAFT_FLAG} to its file")
            message = f"{SPEC_TYPE_FLAG} {spec_type} needs a drafter, but {DRAFT_FLAG} is not set."
            yield Finding("error", message, (fix,), HELP_SOURCE, SPEC_TYPE_FLAG)
    minimum, maximum = case.flag(MIN_DRAFTS_FLAG), case.flag(MAX_DRAFTS_FLAG)
    if isinstance(minimum, int) and isinstance(maximum, int) and minimum > maximum:
        fix = Fix("swap them", {MIN_DRAFTS_FLAG: maximum, MAX_DRAFTS_FLAG: minimum})
        yield Finding(
            "warning",
            f"{MIN_DRAFTS_FLAG} {minimum} is above {MAX_DRAFTS_FLAG} {maximum}.",
            (fix,),
            HELP_SOURCE,
            MIN_DRAFTS_FLAG,
        )


@rule(
    "unknown-flag",
    sources=(
        f"llama-server --help of {len(flags.HISTORY.releases)} builds, {flags.HISTORY.releases[0]} to b{flags.NEWEST_BUILD}",
        "`error: invalid argument: --x`, exit code 1",
    ),
    example=ServerRequest({"model": "a.gguf", "mmap": False}),
)
def unknown_flag(case: Case) -> Iterator[Finding]:
    """llama-server does not start with an unknown option.
    It prints `error: invalid argument` and exits with code 1, by which time the previous server has already been stopped. The rule
    uses the image's help output, or else sparkwright's table of builds.
    """
    yield from unknown_flags(case, HELP_SOURCE, own_options=flags.TABLE.all_options)


@rule(
    "flag-value",
    sources=("the parser of b11549, run with values of every kind; it reads 128k as 128",),
    example=ServerRequest({"model": "a.gguf", "ctx-size": "128k"}),
)
def flag_value(case: Case) -> Iterator[Finding]:
    """A flag's value must be valid.
    llama-server refuses some invalid values with a usage text and exit code 1, and misreads others: `128k` is 128, `1.5` is 1.
    """
    for name in case.request.flags:
        if problem := flags.find_value_problem(case.request.flags, name):
            yield Finding("error", f"{name} {problem}.", (Fix("correct or remove it"),), "llama-server's parser", name)


@rule(
    "fit-shrinks",
    sources=("llama-server --help: -fit, default on", "b11549's log: fitting params to device memory"),
    example=ServerRequest({"model": "a.gguf"}),
)
def fit_shrinks(case: Case) -> Iterator[Finding]:
    """llama-server silently reduces ctx-size and n-gpu-layers to fit into memory.
    `fit` is on by default: if memory is short at startup, llama-server shortens the context or leaves layers on the CPU, and reports it
    only in a verbose log. With both flags set, or `fit: off`, it fails to start instead.
    """
    if flags.is_on(case.flag(flags.FIT)) is False:
        return
    unset_flags = [
        name
        for name, unset_values in ((flags.CONTEXT, (None, 0, "0")), (flags.LAYERS, (None, "auto")))
        if case.flag(name) in unset_values
    ]
    if unset_flags:
        fixes = (
            Fix(
                "set ctx-size to the context you need and n-gpu-layers to all",
                {flags.CONTEXT: 32768, flags.LAYERS: "all"},
            ),
            Fix("set fit to off", {flags.FIT: False}),
        )
        message = f"{' and '.join(unset_flags)} not set: llama-server may silently reduce {'them' if unset_flags[1:] else 'it'} to fit."
        yield Finding("warning", message, fixes, HELP_SOURCE, flags.FIT)


@rule(
    "layers-on-cpu",
    sources=("b11549's log: offloaded 20/49 layers to GPU", "model-serving-minefield 97"),
    example=ServerRequest({"model": "a.gguf", "ctx-size": 8192, "n-gpu-layers": 20}),
)
def layers_on_cpu(case: Case) -> Iterator[Finding]:
    """With a number for n-gpu-layers, the other layers run on the CPU.
    On a GB10, CPU and GPU share the memory, so this saves none, and every token waits for the slower CPU. The same applies to flags that
    keep experts or the KV cache on the CPU, which guides for smaller GPUs recommend.
    """
    if case.request.platform != "gb10":
        return
    layers = case.flag(flags.LAYERS)
    if layers in (0, "0"):
        message = "n-gpu-layers 0: the whole model runs on the CPU."
        yield Finding("warning", message, (Fix("write all", {flags.LAYERS: "all"}),), HELP_SOURCE, flags.LAYERS)
    elif (flags.parse_positive_integer(layers) or MIN_ALL_LAYERS) < MIN_ALL_LAYERS:
        message = f"n-gpu-layers {layers}: if the model has more layers, the rest run on the CPU."
        yield Finding("info", message, (Fix("write all", {flags.LAYERS: "all"}),), "b11549's log", flags.LAYERS)
    cpu_settings = (
        ("cpu-moe", case.flag("cpu-moe") is True, "all experts stay"),
        ("n-cpu-moe", flags.parse_positive_integer(case.flag("n-cpu-moe")) is not None, "experts of some layers stay"),
        ("kv-offload", case.flag("kv-offload") is False, "the KV cache stays"),
    )
    for name, is_set, part in cpu_settings:
        if is_set:
            message = f"{name}: {part} on the CPU."
            yield Finding("warning", message, (Fix("remove it", {name: None}),), HELP_SOURCE, name)


@rule(
    "experts-per-token",
    sources=("llama-server --help: --override-kv changes the model's metadata", "model-serving-minefield 33"),
    example=ServerRequest(
        {
            "model": "a.gguf",
            "ctx-size": 8192,
            "n-gpu-layers": "all",
            OVERRIDES_FLAG: "qwen3moe.expert_used_count=int:16",
        }
    ),
)
def experts_per_token(case: Case) -> Iterator[Finding]:
    """The number of experts per token should be the one that the model was trained with.
    More experts are slower but not better: the weights of the selected experts are scaled to a sum of 1, so the best ones count less.
    """
    overrides = str(case.flag(OVERRIDES_FLAG) or "")
    if "expert_used_count=" in overrides:
        message = f"{OVERRIDES_FLAG} {one_line(overrides, max_chars=80)} changes the number of experts per token."
        yield Finding(
            "warning", message, (Fix("remove it", {OVERRIDES_FLAG: None}),), "the model's metadata", OVERRIDES_FLAG
        )


@rule(
    "quantised-v-cache",
    sources=("b10434 and b11549: quantized V cache requires flash_attn to be enabled, exit code 1",),
    example=ServerRequest({"model": "a.gguf", "ctv": "q8_0", "fa": False}),
)
def quantized_v_cache(case: Case) -> Iterator[Finding]:
    """A quantized V cache needs flash attention.
    With `flash-attn: off`, llama-server loads the model and then exits with code 1.
    """
    cache_type = case.flag("cache-type-v")
    if cache_type in (None, "f32", "f16", "bf16") or flags.is_on(case.flag("flash-attn")) is not False:
        return
    fixes = (Fix("remove flash-attn: off", {"flash-attn": None}), Fix("use an f16 V cache", {"cache-type-v": None}))
    message = f"cache-type-v {cache_type} requires flash attention, which is off: llama-server refuses to start."
    yield Finding("error", message, fixes, "a real start of b11549", "cache-type-v")


@rule(
    "slot-context",
    sources=("b11549, /props: n_ctx of a slot",),
    example=ServerRequest({"model": "a.gguf", "ctx-size": 32768, "parallel": 4}),
)
def slot_context(case: Case) -> Iterator[Finding]:
    """ctx-size is divided among all slots.
    With `parallel: 4`, each request gets a quarter of it, rounded up to a multiple of 256 tokens. With `kv-unified`, all slots share it.
    """
    total, slots = flags.parse_positive_integer(case.flag(flags.CONTEXT)), flags.slot_count(case.request.flags)
    slot_tokens = flags.context(case.request.flags)
    if total is None or slot_tokens is None or slots < 2 or flags.has_unified_cache(case.request.flags):
        return
    rounding_note = "" if slot_tokens * slots == total else f" ({slot_tokens * slots} in total)"
    fix = Fix(f"for {total} tokens per request, set ctx-size to {total * slots}")
    message = f"ctx-size {total}, divided among {slots} slots, gives each request {slot_tokens} tokens{rounding_note}."
    yield Finding("info", message, (fix,), "b11549, /props", flags.CONTEXT)


@rule(
    "cuda12-image",
    sources=("llama.cpp docs/docker.md: server-cuda is CUDA 12.8", "its CMake files: 121a from CUDA 12.9 on"),
    example=ServerRequest({"model": "a.gguf"}, image="ghcr.io/ggml-org/llama.cpp:server-cuda"),
)
def cuda12(case: Case) -> Iterator[Finding]:
    """A GB10 needs an image built with CUDA 13.
    Its compute capability is 12.1. `server-cuda` is built with CUDA 12.8, which does not support it; `server` has no GPU code.
    """
    match = OFFICIAL_IMAGE_PATTERN.match(case.request.image)
    if case.request.platform != "gb10" or match is None or "cuda13" in match["tag"]:
        return
    build = re.search(r"-b\d+$", match["tag"])
    replacement = f"ghcr.io/ggml-org/llama.cpp:server-cuda13{build[0] if build else ''}"
    defect = "is built with CUDA 12.8, without code for a GB10 (sm_121)" if "cuda" in match["tag"] else "has no CUDA"
    message = f"{without_digest(case.request.image)} {defect}."
    yield Finding("warning", message, (Fix(f"use {replacement}"),), "llama.cpp's docs/docker.md", "image")


@rule(
    "newer-release",
    sources=("sparkwright's tables: the newest build whose options and log lines they cover",),
    example=ServerRequest({"model": "a.gguf"}),
    build=99999,
)
def newer_release(case: Case) -> Iterator[Finding]:
    """The build is newer than the newest build that sparkwright's tables cover.
    Options are checked against the build's own `--help` only, and changes to log lines and metrics since then are unknown. A deploy's
    checks of the running server work as usual.
    """
    if case.build is not None and case.build > flags.NEWEST_BUILD:
        yield from shared_rules.newer_release(case.engine, f"b{flags.NEWEST_BUILD}", "build")


@rule(
    "moving-tag",
    sources=("llama.cpp docs/docker.md: tags without a build number are pushed again with each build",),
    example=ServerRequest({"model": "a.gguf"}, image="ghcr.io/ggml-org/llama.cpp:server-cuda13"),
)
def moving_tag(case: Case) -> Iterator[Finding]:
    """A tag without a build number may point to another image tomorrow.
    spark.lock pins the digest, so that all hosts run the same image. However, the registry may delete an image that has lost its tag.
    """
    match = OFFICIAL_IMAGE_PATTERN.match(case.request.image)
    if match is not None and not re.search(r"-b\d+$", match["tag"]):
        replacement = f"the tag of a build, e.g. {match['tag']}-b{flags.NEWEST_BUILD}"
        yield from shared_rules.moving_tag(case.request.image, replacement, "llama.cpp's docs/docker.md")


@rule(
    "api-key-in-arguments",
    sources=("`docker inspect` and `ps` show a container's arguments",),
    example=ServerRequest({"model": "a.gguf", "api-key": "sk-1"}),
)
def api_key(case: Case) -> Iterator[Finding]:
    """An API key in the flags is readable by every user of the host.
    Use `server_key` in the recipe instead: it is passed in a file that only the container can read, and sparkwright's checks send it.
    """
    if case.flag(flags.KEY):
        fix = Fix("remove it and name its source in the recipe: `server_key: {env: SPARK_KEY}`", {flags.KEY: None})
        yield from key_in_arguments(flags.KEY, fix, "docker inspect")


@rule(
    "open-to-network",
    sources=("docker's documentation: a published port bypasses the host's firewall",),
    example=ServerRequest({"model": "a.gguf"}, open_to_network=True),
)
def open_to_network(case: Case) -> Iterator[Finding]:
    """A server published beyond loopback without an API key is open to everyone on the network.
    Without a key, llama-server also allows requests from web pages of all origins.
    """
    yield from shared_rules.open_to_network(case.request)


@rule(
    "no-metrics",
    sources=("b11549: /metrics answers 501 without --metrics",),
    example=ServerRequest({"model": "a.gguf", "metrics": False}),
)
def no_metrics(case: Case) -> Iterator[Finding]:
    """Without metrics, a stalled server looks like a busy server.
    sparkwright adds --metrics; health checks compare the number of decoding steps with the number at the previous check.
    """
    if case.flag(flags.METRICS) is False:
        fix = Fix("remove it", {flags.METRICS: None})
        yield Finding(
            "warning", "metrics is off: health checks cannot detect a stall.", (fix,), HELP_SOURCE, flags.METRICS
        )


@rule(
    "out-of-reach",
    sources=("docker's documentation: a published port forwards to the container's own address",),
    example=ServerRequest({"model": "a.gguf", "host": "127.0.0.1"}),
)
def out_of_reach(case: Case) -> Iterator[Finding]:
    """The server must listen on the port that the container publishes, over HTTP.
    A container's loopback is not reachable from outside, and sparkwright's checks use neither HTTPS nor a path prefix.
    """
    yield from unreachable_host(case, flags.HOST, (".sock",))
    yield from locking_flags(
        case, ("ssl-key-file", "ssl-cert-file", "api-prefix"), "over plain HTTP, without a prefix", HELP_SOURCE
    )
    yield from wrong_published_port(case.request, flags.port(case.request.flags), flags.PORT)
