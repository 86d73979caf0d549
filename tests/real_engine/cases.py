"""Cases for the real engine: a model, the flags of a recipe, and the expected outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.vllm import flags

#: flags of every case, unless it has others. Eager: nothing is compiled, so a start takes half the time.
COMMON: dict[str, Any] = {"enforce-eager": True, "max-model-len": 4096}


@dataclass(frozen=True)
class Prediction:
    """The expected outcome; None means unspecified.

    starts: whether the engine answers with a token. why: one sentence. The settings are the effective ones after a start.
    """

    starts: bool | None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    block_size: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Case:
    """A start of the engine.

    model: a kind of tiny_models, or the name of a missing model. expected: the outcome when the case was written; the
    `why` of a refusal is the sentence that sparkwright must read from its log. flags: the recipe's `vllm:` mapping.
    words: arguments that a mapping cannot express. first_word: the model is the first argument instead of --model.
    measured: run the measuring clients too.
    """

    name: str
    model: str
    expected: Prediction
    flags: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    first_word: bool = False
    measured: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the complete `vllm:` mapping of the recipe."""
        return {**COMMON, **self.flags}

    def argv(self, model_path: str) -> tuple[str, ...]:
        """Return the arguments of `vllm serve`, as in the container of a recipe."""
        model = (model_path,) if self.first_word else ("--model", model_path)
        return (*model, *flags.argv(self.settings()), *self.words)

    def shown(self) -> str:
        """Return the arguments of this case only, for a person."""
        return " ".join((*flags.argv(self.flags), *self.words)) or "(defaults)"


def starting(**settings: Any) -> Prediction:
    """Expect a start, with chunked prefill and prefix caching on by default."""
    return Prediction(True, **{"chunked_prefill": True, "prefix_caching": True, **settings})


#: the start of a recurrent model with prefix caching, since 0.28
ALIGNED = starting(mamba_cache_mode="align")
RECURRENT_OFF = starting(chunked_prefill=False, prefix_caching=False, mamba_cache_mode="none")


def refusal(name: str, model: str, why: str, flags: Mapping[str, Any] | None = None, *words: str) -> Case:
    return Case(name, model, Prediction(False, why=why), flags or {}, words)


NEEDS_CHUNKS = "prefix caching on this recurrent model needs chunked prefill, which is turned off."
AMBIGUOUS = (
    "the engine refuses its arguments: ambiguous option: --max-num could match --max-num-batched-tokens, "
    "--max-num-scheduled-tokens, --max-num-seqs, --max-num-active-seqs, --max-num-queued-reqs, --max-num-queued-tokens."
)
BUDGET = "with chunked prefill off, max-num-batched-tokens (2048) must be at least max-model-len (4096)."
NO_CHUNKS = {"enable-chunked-prefill": False}
NO_PREFIX = {"enable-prefix-caching": False}
UNKNOWN = "unknown argument: "

REFUSALS: tuple[Case, ...] = (
    refusal("unknown-flag", "dense", f"{UNKNOWN}--no-such-flag.", {"no-such-flag": True}),
    refusal("chunked-disable", "gated_delta", f"{UNKNOWN}--disable-chunked-prefill.", {"disable-chunked-prefill": True}),
    refusal("chunked-quoted", "dense", f"{UNKNOWN}False.", {"enable-chunked-prefill": "False"}),
    refusal(
        "chunked-equals-false", "dense", "--enable-chunked-prefill takes no value, got False.", None,
        "--enable-chunked-prefill=False",
    ),
    refusal("calculate-kv-scales", "dense", f"{UNKNOWN}--calculate-kv-scales.", {"calculate-kv-scales": True}),
    refusal("disable-log-requests", "dense", f"{UNKNOWN}--disable-log-requests.", {"disable-log-requests": True}),
    refusal("swap-space", "dense", f"{UNKNOWN}--swap-space 4.", {"swap-space": 4}),
    refusal("ambiguous-flag", "dense", AMBIGUOUS, {"max-num": 4}),
    refusal(
        "mamba-cache-all", "gated_delta", "the engine does not accept all for --mamba-cache-mode.", {"mamba-cache-mode": "all"}
    ),
    refusal(
        "tools-without-parser", "dense", "enable-auto-tool-choice needs a tool-call-parser.",
        {"enable-auto-tool-choice": True},
    ),
    refusal(
        "context-too-long", "dense", "max-model-len 16384 is more than the model's 8192.0.", {"max-model-len": 16384}
    ),
    refusal("model-not-there", "no-such-model", "there is no model at {model} in the container."),
    refusal(
        "seqs-over-budget", "dense", "max-num-seqs 64 is more than max-num-batched-tokens 32.",
        {"max-num-seqs": 64, "max-num-batched-tokens": 32},
    ),
    refusal("dense-chunked-off-small-budget", "dense", BUDGET, {**NO_CHUNKS, "max-num-batched-tokens": 2048}),
    refusal("hybrid-chunked-off", "gated_delta", NEEDS_CHUNKS, NO_CHUNKS),
    refusal("mamba2-chunked-off", "mamba2", NEEDS_CHUNKS, NO_CHUNKS),
    refusal("short-conv-chunked-off", "short_conv", NEEDS_CHUNKS, NO_CHUNKS),
    refusal(
        "hybrid-chunked-off-prefix-off-small-budget", "gated_delta", BUDGET,
        {**NO_CHUNKS, **NO_PREFIX, "max-num-batched-tokens": 2048},
    ),
)  # fmt: skip

STARTS: tuple[Case, ...] = (
    Case("dense-defaults", "dense", starting(), measured=True),
    Case("dense-chunked-off", "dense", starting(chunked_prefill=False), NO_CHUNKS),
    Case("dense-prefix-off", "dense", starting(prefix_caching=False), NO_PREFIX),
    Case("hybrid-defaults", "gated_delta", ALIGNED, measured=True),
    Case("hybrid-chunked-on", "gated_delta", ALIGNED, {"enable-chunked-prefill": True}),
    Case("hybrid-chunked-off-prefix-off", "gated_delta", RECURRENT_OFF, {**NO_CHUNKS, **NO_PREFIX}, measured=True),
    Case("hybrid-prefix-off", "gated_delta", starting(prefix_caching=False, mamba_cache_mode="none"), NO_PREFIX),
    Case("hybrid-mamba-align", "gated_delta", ALIGNED, {"mamba-cache-mode": "align"}),
    # prefix caching decides, not this flag
    Case("hybrid-mamba-none", "gated_delta", ALIGNED, {"mamba-cache-mode": "none"}),
    # a block (256) larger than the step (128) was refused from 0.17 to 0.26
    Case("hybrid-block-over-budget", "gated_delta", ALIGNED, {"max-num-batched-tokens": 128, "max-num-seqs": 16}),
    Case("mamba2-defaults", "mamba2", ALIGNED),
    Case("mamba2-chunked-off-prefix-off", "mamba2", RECURRENT_OFF, {**NO_CHUNKS, **NO_PREFIX}),
    Case("short-conv-defaults", "short_conv", ALIGNED),
    # without attention, prefix caching is off by default
    Case("attention-free-defaults", "attention_free", starting(prefix_caching=False)),
    Case(
        "attention-free-chunked-off", "attention_free", starting(chunked_prefill=False, prefix_caching=False), NO_CHUNKS
    ),
    Case("parser-without-tools", "dense", starting(), {"tool-call-parser": "hermes"}),
    # the build for a CPU has fp8 too
    Case("fp8-kv-cache", "dense", starting(), {"kv-cache-dtype": "fp8"}),
    Case(
        "named-no-thinking", "dense", starting(),
        {"served-model-name": "tiny", "default-chat-template-kwargs": {"enable_thinking": False}},
    ),
    Case(
        "model-first-underscores", "dense", starting(), {"served-model-name": "tiny"}, ("--max_num_seqs", "4"),
        first_word=True,
    ),
    # the parser completes an abbreviation of a single flag
    Case("abbreviated", "dense", starting(), {"max-num-seq": 4, "kv-cache-memory": 2**30}),
)  # fmt: skip

CASES = (*REFUSALS, *STARTS)
