"""Properties that the simulated engine derives from a model's files: cache block size, LoRA adapters, speculative decoding."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm.speculation import METHODS
from sparkwright.sandbox.vllm.command_line import Arguments, crash_error
from sparkwright.trust import bounds
from sparkwright.trust.bounds import count_or_none

RECURRENT_LAYERS = frozenset(
    ("linear_attention", "mamba", "mamba2", "conv", "short_conv", "recurrent", "hybrid", "hybrid_sliding", "kda")
)
RECURRENT_KEYS = ("linear_conv_kernel_dim", "mamba_d_state", "ssm_state_size", "conv_L_cache", "linear_attn_config")

#: architectures that support Mamba cache mode "all", in 0.15 to 0.27
ALL_MODE_ARCHITECTURES = (
    "Bamba",
    "FalconH1",
    "FalconMamba",
    "GraniteMoeHybrid",
    "Jamba",
    "Mamba",
    "NemotronH",
    "Zamba2",
)
ATTENTION_FREE_ARCHITECTURES = ("MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM")
DENSE_BLOCK_TOKENS = 16
MAX_SIZE = 2**24  # maximum number and width of heads
KERNEL_ALIGNMENT_TOKENS = 16
GENERIC_BLOCK_TOKENS = 528  # block size of a hybrid model whose config lacks the sizes of its state

DEFAULT_MAX_RANK = 16
MAX_HEADER_BYTES = 1 << 20

#: share of drafts whose first token is accepted, with a good and with a bad drafter
GOOD_ACCEPTANCE, BAD_ACCEPTANCE = 0.85, 0.15
#: share of accepted tokens whose successor is accepted too
FURTHER_ACCEPTANCE = 0.8
#: duration of a step with drafts, relative to a step without drafts
STEP_COST = 1.25
#: seconds between two log lines with statistics
LOG_INTERVAL_S = 10.0
#: number whose multiples, modulo 1, are evenly distributed
GOLDEN_RATIO = 0.618034


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the language model, without the config of a vision or audio model."""
    text_settings = config.get("text_config")
    return text_settings if isinstance(text_settings, Mapping) else config


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """Return True if some of the model's layers are recurrent."""
    text_settings = text_config(config)
    layers = text_settings.get("layer_types") or text_settings.get("layers_block_type")
    if isinstance(layers, list) and layers:
        return not RECURRENT_LAYERS.isdisjoint(layer for layer in layers if isinstance(layer, str))
    return any(text_settings.get(key) for key in RECURRENT_KEYS)


def is_attention_free(architecture: str) -> bool:
    """Return True if the model has no attention layers. Prefix caching is then off by default."""
    return architecture in ATTENTION_FREE_ARCHITECTURES


def supports_all_mode(architecture: str) -> bool:
    """Return True if the architecture supports Mamba cache mode "all", which caches every state."""
    return architecture.startswith(ALL_MODE_ARCHITECTURES)


def block_tokens(config: Mapping[str, Any], kv_cache_dtype: str) -> int:
    """Return the block size. In a hybrid model, a block's attention page is at least as large as a recurrent layer's state."""
    if not is_hybrid(config):
        return DENSE_BLOCK_TOKENS
    state_size, token_size = state_bytes(text_config(config)), token_bytes(text_config(config), kv_cache_dtype)
    if not state_size or not token_size:
        return GENERIC_BLOCK_TOKENS
    return KERNEL_ALIGNMENT_TOKENS * -(-state_size // (KERNEL_ALIGNMENT_TOKENS * token_size))


def state_bytes(text_settings: Mapping[str, Any]) -> int:
    """Return the size of one gated delta net layer's convolution and state, bytes, or 0 if the config lacks a size."""
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    key_heads, key_dim, value_heads, value_dim = (_read_size(text_settings, name) for name in names)
    if not (key_heads and key_dim and value_heads and value_dim):
        return 0
    kernel = _read_size(text_settings, "linear_conv_kernel_dim") or 4
    convolution = (kernel - 1) * (2 * key_heads * key_dim + value_heads * value_dim) * 2
    return convolution + value_heads * value_dim * key_dim * (
        4 if text_settings.get("mamba_ssm_dtype") == "float32" else 2
    )


def token_bytes(text_settings: Mapping[str, Any], kv_cache_dtype: str) -> int:
    """Return the size of one token's key and value in one attention layer, bytes."""
    width = 1 if kv_cache_dtype.startswith("fp8") else 2
    return 2 * _read_size(text_settings, "num_key_value_heads") * _read_size(text_settings, "head_dim") * width


def padding_percent(config: Mapping[str, Any], kv_cache_dtype: str) -> float:
    """Return the padding of a state's page, in percent of the state's size."""
    text_settings = text_config(config)
    state_size, token_size = state_bytes(text_settings), token_bytes(text_settings, kv_cache_dtype)
    if not state_size or not token_size:
        return 0.0
    return 100 * (block_tokens(config, kv_cache_dtype) * token_size / state_size - 1)


def _read_size(text_settings: Mapping[str, Any], name: str) -> int:
    return count_or_none(text_settings.get(name), MAX_SIZE) or 0


@dataclass(frozen=True)
class Adapter:
    """A loaded LoRA adapter."""

    name: str
    path: str


def load_adapters(
    arguments: Arguments, model: Mapping[str, Any], host_path: Callable[[str], Path]
) -> tuple[Adapter, ...]:
    """Return the adapters of --lora-modules. Raises StartError for an adapter that vLLM 0.32.0 can't load.

    Source: vllm/lora/peft_helper.py, lora_model.py and entrypoints/openai/models/serving.py, and real starts.

    Args:
        model: the model's config.json.
        host_path: returns the host path of a path in the container.
    """
    adapters = tuple(_parse_adapters(arguments.values.get("lora_modules") or ()))
    max_rank = arguments.number("max_lora_rank", DEFAULT_MAX_RANK)
    for adapter in adapters:
        problem = _adapter_problem(adapter, host_path(adapter.path), text_config(model), max_rank)
        if not arguments.switch("enable_lora", False):
            problem = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
        if problem:
            raise crash_error(f"ValueError: {problem}")
    return adapters


def _parse_adapters(entries: Any) -> Iterator[Adapter]:
    for entry in entries:
        if isinstance(entry, Mapping):
            yield Adapter(str(entry["name"]), str(entry["path"]))
        else:
            name, _, path = str(entry).partition("=")
            yield Adapter(name, path)


def _adapter_problem(adapter: Adapter, folder: Path, text_settings: Mapping[str, Any], max_rank: int) -> str:
    """Return the error message for an adapter that can't be loaded, or an empty string."""
    try:
        config = bounds.read_config(folder / "adapter_config.json")
        with (folder / "adapter_model.safetensors").open("rb") as file:
            header = json.loads(file.read(min(struct.unpack("<Q", file.read(8))[0], MAX_HEADER_BYTES)))
    except (OSError, ValueError, struct.error):
        return (
            f"Call to add_lora method failed: Loading lora {adapter.name} failed: No adapter found for {adapter.path}"
        )
    rank = bounds.count_or_none(config.get("r")) or 0
    if config.get("use_dora"):
        return "Call to add_lora method failed: vLLM does not yet support DoRA."
    if rank > max_rank:
        return f"Call to add_lora method failed: LoRA rank {rank} is greater than max_lora_rank {max_rank}."
    # adapters of smaller models are loaded, as in 0.32.0
    hidden_size = bounds.count_or_none(text_settings.get("hidden_size"))
    for name, tensor in header.items():
        if hidden_size and name.endswith("q_proj.lora_A.weight") and tensor["shape"][1] > hidden_size:
            return (
                "Call to add_lora method failed: The size of tensor a "
                f"({hidden_size}) must match the size of tensor b ({tensor['shape'][1]}) at non-singleton dimension 1"
            )
    return ""


@dataclass
class Drafts:
    """The statistics of speculative decoding.

    Metric names and the log line are from vllm/v1/spec_decode/metrics.py; they are the same in 0.11.2 and 0.32.0.
    """

    method: str
    model: str | None  #: the drafter's model
    depth: int  #: tokens per draft
    is_good: bool = True  #: the first token of most drafts is accepted
    draft_count: int = 0
    positions: list[int] = field(default_factory=list)  #: accepted tokens by position
    #: time, drafts and positions at the last log line
    _last_log: tuple[float, int, list[int]] = (0.0, 0, [])

    def __post_init__(self) -> None:
        self.positions = [0] * self.depth
        self._last_log = (time.monotonic(), 0, list(self.positions))

    def __repr__(self) -> str:
        model = None if METHODS[self.method].drafter == "text" else self.model
        return f"SpeculativeConfig(method={self.method!r}, model={model!r}, num_spec_tokens={self.depth})"

    @property
    def step_rate_factor(self) -> float:
        """Factor by which the steps per second differ from those without speculative decoding."""
        return 1 / STEP_COST

    def begin_step(self) -> int:
        """Count a draft. Return the number of tokens in its step: the accepted tokens, and one from the model."""
        spread, share = self.draft_count * GOLDEN_RATIO % 1.0, GOOD_ACCEPTANCE if self.is_good else BAD_ACCEPTANCE
        self.draft_count += 1
        accepted_count = 0
        while accepted_count < self.depth and spread < share * FURTHER_ACCEPTANCE**accepted_count:
            self.positions[accepted_count] += 1
            accepted_count += 1
        return accepted_count + 1

    def counters(self) -> dict[str, tuple[str, int]]:
        """Return the description and value of each counter, by metric name. `positions` are not included."""
        accepted_tokens = sum(self.positions)
        return {
            "vllm:spec_decode_num_drafts_total": ("Number of spec decoding drafts.", self.draft_count),
            "vllm:spec_decode_num_draft_tokens_total": ("Number of draft tokens.", self.draft_count * self.depth),
            "vllm:spec_decode_num_accepted_tokens_total": ("Number of accepted tokens.", accepted_tokens),
        }

    def log_line(self, now_s: float) -> str:
        """Return the log line with statistics, or an empty string if it is not due or there were no drafts."""
        since_s, last_draft_count, last_positions = self._last_log
        new_drafts, seconds = self.draft_count - last_draft_count, now_s - since_s
        if seconds < LOG_INTERVAL_S or not new_drafts:
            return ""
        accepted_by_position = [count - logged for count, logged in zip(self.positions, last_positions, strict=True)]
        self._last_log = (now_s, self.draft_count, list(self.positions))
        drafted_tokens, accepted_tokens = new_drafts * self.depth, sum(accepted_by_position)
        rates = ", ".join(f"{count / new_drafts:.3f}" for count in accepted_by_position)
        return (
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted_tokens / new_drafts:.2f}, "
            f"Accepted throughput: {accepted_tokens / seconds:.2f} tokens/s, Drafted throughput: {drafted_tokens / seconds:.2f} tokens/s, "
            f"Accepted: {accepted_tokens} tokens, Drafted: {drafted_tokens} tokens, Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {accepted_tokens / drafted_tokens * 100:.1f}%"
        )


def parse_drafts(
    speculative_config: Any, model: str, host_path: Callable[[str], Path], *, is_good: bool
) -> Drafts | None:
    """Return the statistics for --speculative-config, or None if it is not set. Raises StartError.

    Args:
        speculative_config: value of the option.
        model: the served model.
        host_path: returns the host path of a path in the container.
        is_good: the first token of most drafts is accepted.
    """
    if not isinstance(speculative_config, Mapping):
        return None
    method, drafter = str(speculative_config.get("method") or "draft_model"), speculative_config.get("model")
    depth = bounds.count_or_none(speculative_config.get("num_speculative_tokens")) or 1
    if method not in METHODS:
        raise crash_error(f"ValueError: Unsupported speculative method: {method!r}")
    if (
        isinstance(drafter, str)
        and METHODS[method].drafter != "text"
        and not (host_path(drafter) / "config.json").is_file()
    ):
        raise crash_error(
            f"OSError: Can't load the configuration of '{drafter}'. If you were trying to load it from 'https://huggingface.co/models',"
            " make sure you don't have a local directory with the same name."
        )
    return Drafts(method, drafter if isinstance(drafter, str) else model, min(depth, 32), is_good)
