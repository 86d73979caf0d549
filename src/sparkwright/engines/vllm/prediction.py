"""Prediction of vLLM's effective settings from its flags, the model and the release. None means unknown.

The settings that the engine logs (engines/log) are authoritative; `make test-engine` compares the prediction with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import EffectiveSettings
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.model.config_parts import ConfigPart, text_part
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm.speculation import CONFIG_FLAG, TOKENS_KEY
from sparkwright.engines.vllm.versions import at_least
from sparkwright.trust.bounds import count_or_none

#: bytes per number
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
#: bytes per number for "auto": models with float32 in their config are served in bfloat16 too
MODEL_DTYPE_BYTES = 2

#: a block is a multiple of this on CUDA (128 on a CPU)
BLOCK_ALIGNMENT_TOKENS = 16

#: models whose block size is not predicted: they have several states of different sizes, and another alignment
UNPREDICTED_ARCHITECTURES = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The size of one recurrent layer's state, in elements."""

    #: convolution state per token
    conv_width: int
    #: tokens in the convolution state
    conv_tokens: int
    ssm_size: int
    #: dtype of the SSM state in the config; "auto" for the model's dtype
    ssm_dtype: str = "auto"


def block_size(
    config: Mapping[str, Any],
    kv_cache_dtype: str,
    *,
    state_dtype: str = "auto",
    ssm_dtype: str = "auto",
    speculative_tokens: int = 0,
    alignment: int = BLOCK_ALIGNMENT_TOKENS,
) -> int | None:
    """Return the attention block of a recurrent model in tokens: large enough for one recurrent state.

    None for other models, and for models whose formula is unknown.

    Args:
        config: the model's config.json.
        kv_cache_dtype: as in --kv-cache-dtype; "auto" is the checkpoint's dtype if that is quantized, else the model's.
        state_dtype: as in --mamba-cache-dtype.
        ssm_dtype: as in --mamba-ssm-cache-dtype; "auto" is the config's, else `state_dtype`.
        speculative_tokens: tokens per draft; 0 without speculative decoding.
        alignment: the block is a multiple of this many tokens.
    """
    architecture = classify(config)
    language_part = text_part(config)
    kv_bytes = DTYPE_BYTES.get(checkpoint_kv_dtype(config) if kv_cache_dtype == "auto" else kv_cache_dtype)
    read_state, kv_elements = STATE_READERS.get(architecture.mechanism), _kv_elements_per_token(language_part)
    if architecture.kind != "recurrent" or architecture.name in UNPREDICTED_ARCHITECTURES or read_state is None:
        return None
    state = read_state(language_part, architecture.name)
    if state is None or kv_bytes is None or kv_elements is None:
        return None
    conv_bytes = DTYPE_BYTES.get(state_dtype, MODEL_DTYPE_BYTES)
    ssm_bytes = DTYPE_BYTES.get(state.ssm_dtype if ssm_dtype == "auto" else ssm_dtype, conv_bytes)
    state_bytes = (state.conv_tokens + speculative_tokens) * state.conv_width * conv_bytes + state.ssm_size * ssm_bytes
    return alignment * -(-state_bytes // (alignment * kv_elements * kv_bytes))


def checkpoint_kv_dtype(config: Mapping[str, Any]) -> str:
    """Return the KV cache dtype that a checkpoint sets, else "bfloat16". Only checkpoints quantized with ModelOpt set one."""
    full_config = ConfigPart("", config)
    quantization = ConfigPart("quantization_config", full_config.get_mapping("quantization_config") or {})
    if not quantization.get_text("quant_method").startswith("modelopt"):
        return "bfloat16"
    inner = ConfigPart("", quantization.get_mapping("quantization") or quantization.keys)
    for part in (inner, quantization):
        scheme = part.get_mapping("kv_cache_scheme")
        if scheme:
            if scheme.get("type") != "float" or scheme.get("dynamic") is not False:
                return "bfloat16"
            return {8: "fp8", 4: "nvfp4"}.get(count_or_none(scheme.get("num_bits")) or 0, "")
        algorithm = part.get_text("kv_cache_quant_algo").lower()
        if algorithm:
            return algorithm
    return "bfloat16"


def _kv_elements_per_token(part: ConfigPart) -> int | None:
    """Return the elements of one token's keys and values in one attention layer; None for latent attention, whose blocks are
    computed differently."""
    heads = part.get_number("num_attention_heads")
    hidden = part.get_number("hidden_size")
    if part.get_number("kv_lora_rank") or heads is None:
        return None
    width = part.get_number("head_dim") or (hidden // heads if hidden else None)
    return 2 * (part.get_number("num_key_value_heads") or heads) * width if width else None


def _gated_deltanet_state(part: ConfigPart, name: str) -> RecurrentState | None:
    sizes = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    numbers = _read_numbers(part, *(f"linear_{size}" for size in sizes))
    if numbers is None:
        return None
    key_heads, key_width, value_heads, value_width, kernel = numbers
    conv = 2 * key_heads * key_width + value_heads * value_width
    # only the class of Qwen3.5 reads this key
    dtype = part.get_text("mamba_ssm_dtype") if name.startswith(("Qwen3_5", "ColQwen3_5")) else ""
    return RecurrentState(conv, kernel - 1, value_heads * value_width * key_width, dtype or "auto")


def _mamba2_state(part: ConfigPart, name: str) -> RecurrentState | None:
    if part.get_number("mamba_num_heads"):
        return _nemotron_h_state(part, name)
    numbers = _read_numbers(part, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    expanded_width = (part.get_number("mamba_expand") or 0) * (part.get_number("hidden_size") or 0)
    # Falcon-H1 has a key for this width; the default of that key applies to no known model
    inner_width = part.get_number("mamba_d_ssm") if name.startswith("FalconH1") else expanded_width
    if numbers is None or not inner_width:
        return None
    heads, width, groups, state, kernel = numbers
    return RecurrentState(inner_width + 2 * groups * state, kernel - 1, heads * width * state)


def _nemotron_h_state(part: ConfigPart, name: str) -> RecurrentState | None:
    numbers = _read_numbers(part, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    if numbers is None or name not in ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"):
        return None
    heads, width, groups, state, kernel = numbers
    conv = heads * width + 2 * groups * state
    return RecurrentState(conv, kernel - 1, heads * width * state, part.get_text("mamba_ssm_cache_dtype") or "float32")


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
    """Return the numbers under these keys; None if one is missing."""
    numbers = tuple(number for name in names if (number := part.get_number(name)) is not None)
    return numbers if len(numbers) == len(names) else None


@dataclass(frozen=True, slots=True)
class ReleaseDefault:
    """The default of a setting, valid from a release on."""

    #: empty for all releases
    since: str
    value: Any
    source: str


CHUNKED_PREFILL = "chunked prefill"
PREFIX_CACHING_DENSE = "prefix caching, dense"
PREFIX_CACHING_HYBRID = "prefix caching, recurrent hybrid"
PREFIX_CACHING_ATTENTION_FREE = "prefix caching, no attention"
MAX_NUM_SEQS = "max-num-seqs"

#: first releases in which the flags have an effect. Until 0.11.0, V1 always set chunked prefill to True (source; issues 18547, 20914),
#: and prefix caching of a recurrent model to False, "since it is not yet supported" (source)
FIRST_RELEASE_WITH_OPTIONAL_CHUNKING = "0.11.1"
FIRST_RELEASE_WITH_MAMBA_CACHING = "0.11.1"
#: the same for recurrent models outside CACHE_MODE_ALL_ARCHITECTURES: earlier releases log "without support for prefix caching:
#: disabling" (#30877)
FIRST_RELEASE_WITH_RECURRENT_CACHING = "0.15.0"
#: first release whose default cache mode is `align` for every model: recurrent states are cached only at block ends
FIRST_RELEASE_WITH_ONLY_ALIGN = "0.28.0"
#: first release that refuses the cache mode `all`
FIRST_RELEASE_REFUSING_ALL = "0.32.0"

#: defaults on a GB10, oldest first
DEFAULTS: dict[str, tuple[ReleaseDefault, ...]] = {
    CHUNKED_PREFILL: (
        ReleaseDefault(
            "", True, "V1's default for every generative model, also recurrent ones; V0 was removed in 0.11.0"
        ),
    ),
    PREFIX_CACHING_DENSE: (ReleaseDefault("", True, "V1's default"),),
    PREFIX_CACHING_HYBRID: (
        ReleaseDefault("", False, "forced off until 0.11.0, opt-in until 0.27"),
        ReleaseDefault("0.28.0", True, "#50991; the config dumps of real 0.32.0 logs"),
    ),
    PREFIX_CACHING_ATTENTION_FREE: (ReleaseDefault("", False, "source of 0.33.0"),),
    vllm_flags.MEMORY_UTILIZATION: (
        ReleaseDefault("", 0.9, "the help of 0.11 to 0.19"),
        ReleaseDefault("0.20.0", 0.92, "#38284; the help of 0.22.1 and 0.32.0"),
    ),
    vllm_flags.BATCHED_TOKENS: (
        ReleaseDefault(
            "", 2048, "the small tier: NVML reports no memory size on a GB10; from 0.33 on by the GPU's name"
        ),
    ),
    MAX_NUM_SEQS: (ReleaseDefault("", 256, "the same tier"),),
}


def default_value(name: str, version: Version | None) -> Any:
    """Return the default of a setting; None if it depends on the version and the version is unknown."""
    first, *later = DEFAULTS[name]
    value = first.value
    for default in later:
        has_default = at_least(version, default.since)
        if has_default is None:
            return None
        if has_default:
            value = default.value
    return value


#: architectures whose default cache mode was `all` until 0.27, and that supported `all` until 0.31 (source of 0.17.1,
#: SupportsMambaPrefixCaching; observed in 0.28.0)
CACHE_MODE_ALL_ARCHITECTURES = frozenset(
    """
        BambaForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM
        MambaForCausalLM Mamba2ForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM Zamba2ForCausalLM
    """.split()
)

PREFIX_CACHING_DEFAULTS_BY_KIND = {
    "recurrent": PREFIX_CACHING_HYBRID,
    "dense": PREFIX_CACHING_DENSE,
    "attention_free": PREFIX_CACHING_ATTENTION_FREE,
}


@dataclass(frozen=True)
class VllmRequest(advice.ServerRequest):
    """The settings of a recipe for vLLM. Flags are accepted in any spelling and stored by canonical name."""

    #: number of Mamba cache blocks at the last start; None if no log reports it
    mamba_blocks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", vllm_flags.normalize(self.flags))

    def flag(self, name: str) -> Any:
        """Return the value of a flag, named in any spelling; None if it is not set."""
        return vllm_flags.value(self.flags, name)

    def speculative_config(self) -> dict[str, Any] | None:
        """Return the keys of `speculative-config`, including dotted ones; None if the recipe has none."""
        value = self.flag(CONFIG_FLAG)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        prefix = f"{CONFIG_FLAG}."
        dotted = {name.removeprefix(prefix): self.flags[name] for name in self.flags if name.startswith(prefix)}
        if not isinstance(value, Mapping) and not dotted:
            return None
        return {**(value if isinstance(value, Mapping) else {}), **dotted}


def predict_effective_settings(
    request: VllmRequest, architecture: Architecture, version: Version | None
) -> EffectiveSettings:
    """Return the settings that follow from flags, model and version; the requested settings for a combination that the engine refuses."""
    chunked_prefill = _predict_chunked_prefill(request, version)
    prefix_caching = _predict_prefix_caching(request, architecture, version)
    max_length = _flag_number(request, "max-model-len") or architecture.max_position_embeddings
    share = vllm_flags.memory_share(request.flags)
    return EffectiveSettings(
        chunked_prefill=chunked_prefill,
        prefix_caching=prefix_caching,
        mamba_cache_mode=_predict_mamba_cache_mode(request, architecture, prefix_caching, version),
        block_tokens=block_size(
            architecture.config,
            str(request.flag("kv-cache-dtype") or "auto"),
            state_dtype=str(request.flag("mamba-cache-dtype") or "auto"),
            ssm_dtype=str(request.flag("mamba-ssm-cache-dtype") or "auto"),
            speculative_tokens=count_or_none((request.speculative_config() or {}).get(TOKENS_KEY)) or 0,
        ),
        budget=_predict_budget(request, chunked_prefill, max_length),
        max_num_seqs=_flag_number(request, "max-num-seqs") or default_value(MAX_NUM_SEQS, version),
        max_model_len=max_length,
        memory_utilization=default_value(vllm_flags.MEMORY_UTILIZATION, version) if share is None else share,
    )


def _predict_chunked_prefill(request: VllmRequest, version: Version | None) -> bool | None:
    if request.platform == "ascend":
        return is_ascend_prefill_chunked(request.flags)
    setting = request.flag("enable-chunked-prefill")
    if setting is None or setting is True:
        return True
    is_optional = at_least(version, FIRST_RELEASE_WITH_OPTIONAL_CHUNKING)
    return None if is_optional is None and version is not None else is_optional is False


def supports_prefix_caching(architecture: Architecture, version: Version | None) -> bool:
    """Return False if a release turns off prefix caching for a recurrent model, although it is requested."""
    is_mamba = architecture.name in CACHE_MODE_ALL_ARCHITECTURES
    first_release = FIRST_RELEASE_WITH_MAMBA_CACHING if is_mamba else FIRST_RELEASE_WITH_RECURRENT_CACHING
    return architecture.kind != "recurrent" or at_least(version, first_release) is not False


def _predict_prefix_caching(request: VllmRequest, architecture: Architecture, version: Version | None) -> bool | None:
    setting = request.flag("enable-prefix-caching")
    if isinstance(setting, bool):
        return setting and supports_prefix_caching(architecture, version)
    name = PREFIX_CACHING_DEFAULTS_BY_KIND.get(architecture.kind)
    return None if name is None else default_value(name, version)


def _predict_mamba_cache_mode(
    request: VllmRequest, architecture: Architecture, prefix_caching: bool | None, version: Version | None
) -> str | None:
    if architecture.kind not in ("recurrent", "attention_free") or prefix_caching is None:
        return None
    if not prefix_caching:
        return "none"
    setting = request.flag("mamba-cache-mode")
    if architecture.name not in CACHE_MODE_ALL_ARCHITECTURES or setting == "align":
        return "align"
    is_align_only = at_least(version, FIRST_RELEASE_REFUSING_ALL if setting == "all" else FIRST_RELEASE_WITH_ONLY_ALIGN)
    return None if is_align_only is None else "align" if is_align_only else "all"


def _predict_budget(request: VllmRequest, chunked_prefill: bool | None, max_length: int | None) -> int | None:
    requested = _flag_number(request, "max-num-batched-tokens")
    if requested is not None:
        return requested
    default_budget = int(DEFAULTS[vllm_flags.BATCHED_TOKENS][0].value)
    if chunked_prefill is False:  # raised so that a whole prompt fits in one step (source of 0.11.0, 0.17.1, 0.33.0)
        return max(default_budget, max_length) if max_length else None
    return default_budget


def _flag_number(request: VllmRequest, name: str) -> int | None:
    setting = request.flag(name)
    return vllm_flags.parse_positive_integer(setting) if setting is not None else None


# Ascend-vLLM, for recipes with `platform: ascend`: --additional-config, a JSON option, configures its scheduler.
#
# Source: Ascend-vLLM's guide to its scheduler and features.

ASCEND_CONFIG = "additional-config"
ASCEND_SCHEDULER = "ascend_scheduler_config"
SCHEDULER_ENABLED = "enabled"
SCHEDULER_CHUNKED = "chunked_prefill_enabled"
ASCEND_BUDGET_STEP = 256


def ascend_scheduler(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler's settings in --additional-config; empty if there are none."""
    config = vllm_flags.value(flags, ASCEND_CONFIG)
    settings = config.get(ASCEND_SCHEDULER) if isinstance(config, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def is_ascend_prefill_chunked(flags: Mapping[str, Any]) -> bool:
    """Return True if chunked prefill is on. The Ascend scheduler, if enabled, turns it off unless its settings turn it on."""
    settings = ascend_scheduler(flags)
    if settings.get(SCHEDULER_ENABLED):
        return bool(settings.get(SCHEDULER_CHUNKED, False))
    return vllm_flags.value(flags, "enable-chunked-prefill") is not False


def set_ascend_scheduler(flags: Mapping[str, Any], *, enabled: bool, chunked: bool) -> dict[str, Any]:
    """Return the flags with both scheduler settings in --additional-config."""
    config = vllm_flags.value(flags, ASCEND_CONFIG)
    scheduler = {**ascend_scheduler(flags), SCHEDULER_ENABLED: enabled, SCHEDULER_CHUNKED: chunked}
    other_flags = {name: setting for name, setting in flags.items() if name != ASCEND_CONFIG}
    return {
        **other_flags,
        ASCEND_CONFIG: {**(config if isinstance(config, Mapping) else {}), ASCEND_SCHEDULER: scheduler},
    }
