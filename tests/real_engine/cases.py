"""Cases for the real engine: a model, a recipe's flags, and the expected outcome.

The flags are a recipe's `vllm:` mapping and become words as sparkwright makes them. `words` are for what no mapping can say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.vllm import flags

#: of every case; its own flags win. Eager: nothing is compiled, a start takes half the time.
COMMON: dict[str, Any] = {"enforce-eager": True, "max-model-len": 4096}


@dataclass(frozen=True)
class Prediction:
    """The expected outcome; None is unspecified.

    starts: it answers with a token. The settings: what is effective, and only of a server that starts. why: one sentence.
    """

    starts: bool | None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    block_size: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Case:
    """model: a kind of tiny_models, or a name of none. first_word: the model goes before the flags, not in --model.

    expected: what it did when this case was written; a refusal's `why` is the sentence that its log is to be read as.
    measured: the clients that measure are run against it too.
    """

    name: str
    model: str
    expected: Prediction
    flags: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    first_word: bool = False
    measured: bool = False

    def settings(self) -> dict[str, Any]:
        """The whole `vllm:` mapping of its recipe."""
        return {**COMMON, **self.flags}

    def argv(self, model_path: str) -> tuple[str, ...]:
        """The words after `vllm serve`, as a recipe's container has them."""
        model = (model_path,) if self.first_word else ("--model", model_path)
        return (*model, *flags.argv(self.settings()), *self.words)

    def shown(self) -> str:
        """Its own words, for a reader."""
        return " ".join((*flags.argv(self.flags), *self.words)) or "(defaults)"


def starting(why: str = "", **settings: Any) -> Prediction:
    """Expect a start, with chunked prefill and prefix caching on by default."""
    return Prediction(True, **{"chunked_prefill": True, "prefix_caching": True, **settings}, why=why)


def starting_aligned(why: str = "", **settings: Any) -> Prediction:
    """Expect the start of a recurrent model with prefix caching, as since 0.28."""
    return starting(why, **{"mamba_cache_mode": "align", **settings})


def refusal(why: str) -> Prediction:
    return Prediction(False, why=why)


NEEDS_CHUNKS = "prefix caching on this recurrent model needs chunked prefill, which is turned off."
AMBIGUOUS = (
    "the engine refuses its arguments: ambiguous option: --max-num could match --max-num-batched-tokens, "
    "--max-num-scheduled-tokens, --max-num-seqs, --max-num-active-seqs, --max-num-queued-reqs, --max-num-queued-tokens."
)
NO_CHUNKS = {"enable-chunked-prefill": False}
NO_PREFIX = {"enable-prefix-caching": False}

REFUSALS: tuple[Case, ...] = (
    Case("unknown-flag", "dense", refusal("unknown argument: --no-such-flag."), {"no-such-flag": True}),
    Case(
        "chunked-disable",
        "gated_delta",
        refusal("unknown argument: --disable-chunked-prefill."),
        {"disable-chunked-prefill": True},
    ),
    Case("chunked-quoted", "dense", refusal("unknown argument: False."), {"enable-chunked-prefill": "False"}),
    Case(
        "chunked-equals-false",
        "dense",
        refusal("--enable-chunked-prefill takes no value, got False."),
        words=("--enable-chunked-prefill=False",),
    ),
    Case(
        "calculate-kv-scales",
        "dense",
        refusal("unknown argument: --calculate-kv-scales."),
        {"calculate-kv-scales": True},
    ),
    Case(
        "disable-log-requests",
        "dense",
        refusal("unknown argument: --disable-log-requests."),
        {"disable-log-requests": True},
    ),
    Case("swap-space", "dense", refusal("unknown argument: --swap-space 4."), {"swap-space": 4}),
    Case("ambiguous-flag", "dense", refusal(AMBIGUOUS), {"max-num": 4}),
    Case(
        "mamba-cache-all",
        "gated_delta",
        refusal("the engine refuses all for --mamba-cache-mode."),
        {"mamba-cache-mode": "all"},
    ),
    Case(
        "tools-without-parser",
        "dense",
        refusal("enable-auto-tool-choice needs a tool-call-parser."),
        {"enable-auto-tool-choice": True},
    ),
    Case(
        "context-too-long",
        "dense",
        refusal("max-model-len 16384 is more than the model's 8192.0."),
        {"max-model-len": 16384},
    ),
    Case("model-not-there", "no-such-model", refusal("there is no model at {model} in the container.")),
    Case(
        "seqs-over-budget",
        "dense",
        refusal("max-num-seqs 64 is more than max-num-batched-tokens 32."),
        {"max-num-seqs": 64, "max-num-batched-tokens": 32},
    ),
    Case(
        "dense-chunked-off-small-budget",
        "dense",
        refusal("with chunked prefill off, max-num-batched-tokens (2048) must reach max-model-len (4096)."),
        {**NO_CHUNKS, "max-num-batched-tokens": 2048},
    ),
    Case("hybrid-chunked-off", "gated_delta", refusal(NEEDS_CHUNKS), NO_CHUNKS),
    Case("mamba2-chunked-off", "mamba2", refusal(NEEDS_CHUNKS), NO_CHUNKS),
    Case("short-conv-chunked-off", "short_conv", refusal(NEEDS_CHUNKS), NO_CHUNKS),
    Case(
        "hybrid-chunked-off-prefix-off-small-budget",
        "gated_delta",
        refusal("with chunked prefill off, max-num-batched-tokens (2048) must reach max-model-len (4096)."),
        {**NO_CHUNKS, **NO_PREFIX, "max-num-batched-tokens": 2048},
    ),
)

STARTS: tuple[Case, ...] = (
    Case("dense-defaults", "dense", starting(), measured=True),
    Case("dense-chunked-off", "dense", starting(chunked_prefill=False), NO_CHUNKS),
    Case("dense-prefix-off", "dense", starting(prefix_caching=False), NO_PREFIX),
    Case("hybrid-defaults", "gated_delta", starting_aligned(), measured=True),
    Case(
        "hybrid-chunked-on",
        "gated_delta",
        starting_aligned("the flag says what is so without it"),
        {"enable-chunked-prefill": True},
    ),
    Case(
        "hybrid-chunked-off-prefix-off",
        "gated_delta",
        starting(chunked_prefill=False, prefix_caching=False, mamba_cache_mode="none"),
        {**NO_CHUNKS, **NO_PREFIX},
        measured=True,
    ),
    Case("hybrid-prefix-off", "gated_delta", starting(prefix_caching=False, mamba_cache_mode="none"), NO_PREFIX),
    Case("hybrid-mamba-align", "gated_delta", starting_aligned(), {"mamba-cache-mode": "align"}),
    Case(
        "hybrid-mamba-none",
        "gated_delta",
        starting_aligned("prefix caching decides, not this flag"),
        {"mamba-cache-mode": "none"},
    ),
    Case(
        "hybrid-block-over-budget",
        "gated_delta",
        starting_aligned("a block (256) larger than the step (128) was refused from 0.17 to 0.26 and is not since"),
        {"max-num-batched-tokens": 128, "max-num-seqs": 16},
    ),
    Case("mamba2-defaults", "mamba2", starting_aligned()),
    Case(
        "mamba2-chunked-off-prefix-off",
        "mamba2",
        starting(chunked_prefill=False, prefix_caching=False, mamba_cache_mode="none"),
        {**NO_CHUNKS, **NO_PREFIX},
    ),
    Case("short-conv-defaults", "short_conv", starting_aligned()),
    Case(
        "attention-free-defaults",
        "attention_free",
        starting("no attention: prefix caching stays off by default", prefix_caching=False),
    ),
    Case(
        "attention-free-chunked-off", "attention_free", starting(chunked_prefill=False, prefix_caching=False), NO_CHUNKS
    ),
    Case("parser-without-tools", "dense", starting("a parser that nothing uses"), {"tool-call-parser": "hermes"}),
    Case("fp8-kv-cache", "dense", starting("the build for a CPU knows fp8 too"), {"kv-cache-dtype": "fp8"}),
    Case(
        "named-no-thinking",
        "dense",
        starting("--model beside a served name"),
        {"served-model-name": "tiny", "default-chat-template-kwargs": {"enable_thinking": False}},
    ),
    Case(
        "model-first-underscores",
        "dense",
        starting(),
        {"served-model-name": "tiny"},
        words=("--max_num_seqs", "4"),
        first_word=True,
    ),
    Case(
        "abbreviated",
        "dense",
        starting("its parser completes what begins one flag only"),
        {"max-num-seq": 4, "kv-cache-memory": 2**30},
    ),
)

CASES = (*REFUSALS, *STARTS)
