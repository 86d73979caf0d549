"""Prediction of an engine's effective settings from its flags. None: not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import Effective
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.model.config_parts import ConfigPart, text_part
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm.versions import at_least
from sparkwright.trust.bounds import count_or_none

#: bytes per number. A model with float32 in its config is served in bfloat16 too, so "auto" is 2.
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
MODEL_DTYPE_BYTES = 2

#: the block size's unit on CUDA (on a CPU: 128)
BLOCK_ALIGNMENT_TOKENS = 16

#: models with several states of different sizes, and another unit: not predicted
NOT_PREDICTED = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The state of one recurrent layer, in numbers (not bytes)."""

    #: numbers per remembered token
    conv: int
    #: number of remembered tokens
    kept: int
    #: numbers of the SSM state
    ssm: int
    #: as the config sets it, "auto" for the model's own
    ssm_dtype: str = "auto"


def block_size(
    config: Mapping[str, Any],
    kv_cache_dtype: str,
    *,
    ssm_dtype: str = "auto",
    speculative_tokens: int = 0,
    alignment: int = BLOCK_ALIGNMENT_TOKENS,
) -> int | None:
    """Return the tokens per block, None if the model has no such block or its formula is not known.

    Args:
        config: the model's config.json.
        kv_cache_dtype: as in --kv-cache-dtype; "auto" is the checkpoint's own if that is quantized, else the model's.
        ssm_dtype: as in --mamba-ssm-cache-dtype.
        speculative_tokens: of a draft, 0 without one.
        alignment: unit of the block size, tokens.
    """
    architecture = classify(config)
    inner = text_part(config)
    kv_bytes = DTYPE_BYTES.get(checkpoint_kv_dtype(config) if kv_cache_dtype == "auto" else kv_cache_dtype)
    state_of, token = STATE_READERS.get(architecture.mechanism), _kv_values_per_token(inner)
    if architecture.kind != "recurrent" or architecture.name in NOT_PREDICTED or state_of is None:
        return None
    state = state_of(inner, architecture.name)
    if state is None or kv_bytes is None or token is None:
        return None
    ssm_bytes = DTYPE_BYTES.get(state.ssm_dtype if ssm_dtype == "auto" else ssm_dtype, MODEL_DTYPE_BYTES)
    page = (state.kept + speculative_tokens) * state.conv * MODEL_DTYPE_BYTES + state.ssm * ssm_bytes
    return alignment * -(-page // (alignment * token * kv_bytes))


def checkpoint_kv_dtype(config: Mapping[str, Any]) -> str:
    """Return the KV cache dtype that a quantized checkpoint sets (ModelOpt's can), "bfloat16" if it sets none."""
    full = ConfigPart("", config)
    quantization = ConfigPart("quantization_config", full.mapping("quantization_config") or {})
    if not quantization.word("quant_method").startswith("modelopt"):
        return "bfloat16"
    inner = ConfigPart("", quantization.mapping("quantization") or quantization.keys)
    for part in (inner, quantization):
        scheme = part.mapping("kv_cache_scheme")
        if scheme:
            is_static_float = scheme.get("type") == "float" and scheme.get("dynamic") is False
            return (
                {8: "fp8", 4: "nvfp4"}.get(count_or_none(scheme.get("num_bits")) or 0, "")
                if is_static_float
                else "bfloat16"
            )
        algorithm = part.word("kv_cache_quant_algo").lower()
        if algorithm:
            return algorithm
    return "bfloat16"


def _kv_values_per_token(part: ConfigPart) -> int | None:
    """Return the numbers in keys and values of one token in one attention layer; None for latent attention, whose block has
    another unit."""
    heads = part.number("num_attention_heads")
    hidden = part.number("hidden_size")
    if part.number("kv_lora_rank") or heads is None:
        return None
    width = part.number("head_dim") or (hidden // heads if hidden else None)
    return 2 * (part.number("num_key_value_heads") or heads) * width if width else None


def _gated_deltanet_state(part: ConfigPart, name: str) -> RecurrentState | None:
    sizes = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    numbers = _read_numbers(part, *(f"linear_{size}" for size in sizes))
    if numbers is None:
        return None
    key_heads, key_width, value_heads, value_width, kernel = numbers
    conv = 2 * key_heads * key_width + value_heads * value_width
    # only Qwen3.5's class reads the key
    dtype = part.word("mamba_ssm_dtype") if name.startswith(("Qwen3_5", "ColQwen3_5")) else ""
    return RecurrentState(conv, kernel - 1, value_heads * value_width * key_width, dtype or "auto")


def _mamba2_state(part: ConfigPart, name: str) -> RecurrentState | None:
    if part.number("mamba_num_heads"):
        return _nemotron_h_state(part, name)
    numbers = _read_numbers(part, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    expanded = (part.number("mamba_expand") or 0) * (part.number("hidden_size") or 0)
    # Falcon-H1 has a separate width, with a default that no model uses
    inner = part.number("mamba_d_ssm") if name.startswith("FalconH1") else expanded
    if numbers is None or not inner:
        return None
    heads, width, groups, state, kernel = numbers
    return RecurrentState(inner + 2 * groups * state, kernel - 1, heads * width * state)


def _nemotron_h_state(part: ConfigPart, name: str) -> RecurrentState | None:
    numbers = _read_numbers(part, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    if numbers is None or name not in ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"):
        return None
    heads, width, groups, state, kernel = numbers
    conv = heads * width + 2 * groups * state
    return RecurrentState(conv, kernel - 1, heads * width * state, part.word("mamba_ssm_cache_dtype") or "float32")


def _mamba_state(part: ConfigPart, name: str) -> RecurrentState | None:
    numbers = _read_numbers(part, "mamba_expand", "hidden_size", "mamba_d_state", "mamba_d_conv")
    if numbers is None or not name.startswith("Jamba"):
        return None
    expand, hidden, state, kernel = numbers
    return RecurrentState(expand * hidden, kernel - 1, expand * hidden * state)


STATE_READERS: dict[str, Callable[[ConfigPart, str], RecurrentState | None]] = {
    tables.GDN: _gated_deltanet_state,
    tables.MAMBA2: _mamba2_state,
    tables.MAMBA: _mamba_state,
}


def _read_numbers(part: ConfigPart, *names: str) -> tuple[int, ...] | None:
    values = [part.number(name) for name in names]
    present = tuple(index for index in values if index is not None)
    return present if len(present) == len(values) else None


# Prediction of an engine's effective settings from its flags. None: not known.
#
# The engine's own config dump, read by engines/log, is the truth; `make test-engine` compares the two.


# Defaults of vLLM by release, on a GB10.
#
# Each row: first release, value and source. Nothing is guessed for a version that is not known: the answer is then None, unless
# all releases agree.


@dataclass(frozen=True, slots=True)
class ReleaseDefault:
    """A default value from a release on."""

    #: first release with it; empty for always
    since: str
    value: Any
    source: str


CHUNKED_PREFILL = "chunked prefill"
PREFIX_CACHING_DENSE = "prefix caching, dense"
PREFIX_CACHING_HYBRID = "prefix caching, recurrent hybrid"
PREFIX_CACHING_ATTENTION_FREE = "prefix caching, no attention"
MEMORY_UTILIZATION = "gpu-memory-utilization"
MAX_NUM_BATCHED_TOKENS = "max-num-batched-tokens"
MAX_NUM_SEQS = "max-num-seqs"

#: first release that obeys the flag: V1 before it always set chunked prefill to True (source of 0.11.0; issues
#: 18547, 20914), and prefix caching of a recurrent model to False, "since it is not yet supported" (source of 0.11.0)
CHUNKED_PREFILL_OPTIONAL_SINCE = "0.11.1"
RECURRENT_PREFIX_CACHING_SINCE = "0.11.1"
#: first release that keeps a recurrent layer's state at the ends of whole blocks only, unless the mode is `all`; and the first
#: that refuses `all`
ALIGN_ONLY_SINCE = "0.28.0"
ALL_REFUSED_SINCE = "0.32.0"

#: oldest first
DEFAULTS: dict[str, tuple[ReleaseDefault, ...]] = {
    CHUNKED_PREFILL: (
        ReleaseDefault(
            "", True, "V1's default for every generative model, recurrent ones too; V0 was removed in 0.11.0"
        ),
    ),
    PREFIX_CACHING_DENSE: (ReleaseDefault("", True, "V1's default"),),
    PREFIX_CACHING_HYBRID: (
        ReleaseDefault("", False, "forced off until 0.11.0, opt-in until 0.27"),
        ReleaseDefault("0.28.0", True, "#50991; the config dumps of real 0.32.0 logs"),
    ),
    PREFIX_CACHING_ATTENTION_FREE: (ReleaseDefault("", False, "source of 0.33.0"),),
    MEMORY_UTILIZATION: (
        ReleaseDefault("", 0.9, "the help of 0.11 to 0.19"),
        ReleaseDefault("0.20.0", 0.92, "#38284; the help of 0.22.1 and 0.32.0"),
    ),
    MAX_NUM_BATCHED_TOKENS: (
        ReleaseDefault("", 2048, "NVML names no memory size on a GB10: the small tier, and by name from 0.33 on"),
    ),
    MAX_NUM_SEQS: (ReleaseDefault("", 256, "the same tier"),),
}


def default_value(name: str, version: Version | None) -> Any:
    """Return the default of a setting; None if it depends on the version and that is not known."""
    first, *later = DEFAULTS[name]
    value = first.value
    for row in later:
        reached = at_least(version, row.since)
        if reached is None:
            return None
        if reached:
            value = row.value
    return value


#: architectures whose default cache mode was `all` until 0.27, and that took `all` until 0.31. source 0.17.1
#: (SupportsMambaPrefixCaching); seen: 0.28.0
CACHE_MODE_ALL = frozenset(
    """
        BambaForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM
        MambaForCausalLM Mamba2ForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM Zamba2ForCausalLM
    """.split()
)

PREFIX_CACHING = {
    "recurrent": PREFIX_CACHING_HYBRID,
    "dense": PREFIX_CACHING_DENSE,
    "attention_free": PREFIX_CACHING_ATTENTION_FREE,
}


@dataclass(frozen=True)
class VllmRequest(advice.ServerRequest):
    """The settings of a recipe for vLLM. Flags may have any spelling; they are kept under their own names."""

    #: number of Mamba cache blocks that fitted at the last start, if a log reports it
    mamba_blocks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", vllm_flags.normalize(self.flags))

    def flag(self, name: str) -> Any:
        """Return a flag's value under any of its spellings; None if it is not set."""
        return vllm_flags.value(self.flags, name)


def predict_effective(request: VllmRequest, architecture: Architecture, version: Version | None) -> Effective:
    """Return the settings that follow from flags, model and version. A combination that the engine refuses is predicted as
    requested."""
    chunked = _predict_chunked_prefill(request, version)
    prefix = _predict_prefix_caching(request, architecture, version)
    length = _flag_number(request, "max-model-len") or architecture.max_position_embeddings
    share = vllm_flags.memory_share(request.flags)
    return Effective(
        chunked_prefill=chunked,
        prefix_caching=prefix,
        mamba_cache_mode=_predict_mamba_cache_mode(request, architecture, prefix, version),
        block_tokens=block_size(architecture.config, str(request.flag("kv-cache-dtype") or "auto")),
        budget=_predict_budget(request, chunked, length),
        max_num_seqs=_flag_number(request, "max-num-seqs") or default_value(MAX_NUM_SEQS, version),
        max_model_len=length,
        memory_utilization=default_value(MEMORY_UTILIZATION, version) if share is None else share,
    )


def _predict_chunked_prefill(request: VllmRequest, version: Version | None) -> bool | None:
    if request.platform == "ascend":
        return is_ascend_prefill_chunked(request.flags)
    setting = request.flag("enable-chunked-prefill")
    if setting is None or setting is True:
        return True
    honoured = at_least(version, CHUNKED_PREFILL_OPTIONAL_SINCE)
    return None if honoured is None and version is not None else honoured is False


def _predict_prefix_caching(request: VllmRequest, architecture: Architecture, version: Version | None) -> bool | None:
    setting = request.flag("enable-prefix-caching")
    if isinstance(setting, bool):
        honoured = at_least(version, RECURRENT_PREFIX_CACHING_SINCE) is not False
        return setting and (honoured or architecture.kind != "recurrent")
    name = PREFIX_CACHING.get(architecture.kind)
    return None if name is None else default_value(name, version)


def _predict_mamba_cache_mode(
    request: VllmRequest, architecture: Architecture, prefix: bool | None, version: Version | None
) -> str | None:
    if architecture.kind not in ("recurrent", "attention_free") or prefix is None:
        return None
    if not prefix:
        return "none"
    setting = request.flag("mamba-cache-mode")
    if architecture.name not in CACHE_MODE_ALL or setting == "align":
        return "align"
    until = ALL_REFUSED_SINCE if setting == "all" else ALIGN_ONLY_SINCE
    align_only = at_least(version, until)
    return None if align_only is None else "align" if align_only else "all"


def _predict_budget(request: VllmRequest, chunked: bool | None, length: int | None) -> int | None:
    requested = _flag_number(request, "max-num-batched-tokens")
    if requested is not None:
        return requested
    default_budget = int(DEFAULTS[MAX_NUM_BATCHED_TOKENS][0].value)
    if chunked is False:  # raised so that a whole prompt fits one step (source 0.11.0, 0.17.1, 0.33.0)
        return max(default_budget, length) if length else None
    return default_budget


def _flag_number(request: VllmRequest, name: str) -> int | None:
    setting = request.flag(name)
    return vllm_flags.parse_positive_integer(setting) if setting is not None else None


# Ascend-vLLM, for recipes with `platform: ascend`: it has another scheduler, set through --additional-config.
#
# Source: Ascend-vLLM's guide to its scheduler and features. Keys that vLLM itself does not have go into that one JSON option.

ASCEND_CONFIG = "additional-config"
ASCEND_SCHEDULER = "ascend_scheduler_config"
SCHEDULER_ENABLED = "enabled"
SCHEDULER_CHUNKED = "chunked_prefill_enabled"
ASCEND_BUDGET_STEP = 256


def ascend_scheduler(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler's settings; empty if the flags set none."""
    config = vllm_flags.value(flags, ASCEND_CONFIG)
    settings = config.get(ASCEND_SCHEDULER) if isinstance(config, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def is_ascend_prefill_chunked(flags: Mapping[str, Any]) -> bool:
    """Return True if prompts are prefilled in chunks: the Ascend scheduler turns that off unless its settings turn it on."""
    settings = ascend_scheduler(flags)
    if settings.get(SCHEDULER_ENABLED):
        return bool(settings.get(SCHEDULER_CHUNKED, False))
    return vllm_flags.value(flags, "enable-chunked-prefill") is not False


def set_ascend_scheduler(flags: Mapping[str, Any], *, enabled: bool, chunked: bool) -> dict[str, Any]:
    """Return the flags with both settings added to --additional-config."""
    config = vllm_flags.value(flags, ASCEND_CONFIG)
    other_keys = dict(config) if isinstance(config, Mapping) else {}
    other_flags = {name: message for name, message in flags.items() if name != ASCEND_CONFIG}
    return {
        **other_flags,
        ASCEND_CONFIG: {
            **other_keys,
            ASCEND_SCHEDULER: {**ascend_scheduler(flags), SCHEDULER_ENABLED: enabled, SCHEDULER_CHUNKED: chunked},
        },
    }
