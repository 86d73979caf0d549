"""The settings of the simulated vLLM, read from its arguments and its model's folder, and its errors for invalid ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm import option_values
from sparkwright.sandbox.serving.process import SIZE_SCALE, StartError
from sparkwright.sandbox.vllm.command_line import Arguments, Release, crash_error, parse_release
from sparkwright.sandbox.vllm.model import (
    Adapter,
    Drafts,
    block_tokens,
    is_attention_free,
    is_hybrid,
    padding_percent,
    supports_all_mode,
    text_config,
)
from sparkwright.trust import bounds

DEFAULT_BATCHED_TOKENS = 2048  # on a GB10, in every version
DEFAULT_MAX_SEQS = 256
MIN_SHARD_BYTES = 1_000_000  # smaller files are incomplete: the simulated hub's shards have 2.5 MB
CACHE_TOKENS = 1_450_000  # KV cache of Qwen3.5-35B-A3B at a GPU memory utilization of 1

LAST_RELEASE_ALWAYS_CHUNKING: Release = (0, 11, 0)  # chunked prefill can't be disabled
LAST_RELEASE_WITHOUT_HYBRID_CACHING: Release = (0, 11, 0)  # hybrid models have no prefix caching
FIRST_RELEASE_WITH_ALIGN_MODE: Release = (0, 15, 0)  # prefix caching for gated delta nets
FIRST_RELEASE_WITH_HYBRID_CACHING_ON: Release = (0, 28, 0)  # prefix caching is the default for hybrid models
FIRST_RELEASE_IGNORING_CACHE_MODE: Release = (0, 33, 0)  # --mamba-cache-mode has no effect
FIRST_RELEASE_WITH_LARGER_SHARE: Release = (0, 20, 0)  # default GPU memory utilization 0.92 instead of 0.9
FIRST_RELEASE_WITH_BLOCK_CHECK: Release = (0, 17, 0)  # a block must fit into a scheduler step
#: a block is checked by the engine core, after the attention backend has been chosen
FIRST_RELEASE_CHECKING_BLOCK_IN_CORE: Release = (0, 18, 0)
FIRST_RELEASE_WITHOUT_BLOCK_CHECK: Release = (0, 27, 0)
#: options whose values are repeated in the log's config dump; the attention backend has a line of its own
ECHOED_OPTIONS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "dtype", "seed", "load_format"),
    *("trust_remote_code", "tokenizer_mode", "disable_custom_all_reduce", "attention_backend"),
)
#: Pydantic's error type and its wording for each kind of violated limit
LIMIT_ERRORS = {
    ">": ("greater_than", "greater than"),
    ">=": ("greater_than_equal", "greater than or equal to"),
    "<": ("less_than", "less than"),
    "<=": ("less_than_equal", "less than or equal to"),
}


@dataclass(frozen=True)
class Config:
    """The settings of a vLLM engine."""

    model: str
    served_names: tuple[str, ...]
    architecture: str
    hybrid: bool
    max_model_len: int
    #: maximum number of tokens in one scheduler step (max_num_batched_tokens)
    budget: int
    max_num_seqs: int
    chunked_prefill: bool
    prefix_caching: bool
    mamba_cache_mode: str
    kv_cache_dtype: str
    quantization: str | None
    #: share of the host's memory for the engine
    utilization: float
    block_tokens: int
    padding_percent: float
    api_keys: tuple[str, ...]
    port: int
    parses_thinking: bool
    thinks_by_default: bool
    eager: bool
    shard_count: int
    pooling: bool
    auto_tools: bool = False
    tool_parser: str = ""
    accepts_pictures: bool = False
    hidden_size: int = 128
    weight_bytes: int = 0
    #: speculative decoding, or None
    drafts: Drafts | None = None
    #: LoRA adapters by name
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    #: values of ECHOED_OPTIONS
    echoed_values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cache_blocks(self) -> int:
        """Number of blocks in the KV cache."""
        return max(1, int(self.utilization * CACHE_TOKENS) // self.block_tokens)

    @property
    def cache_tokens(self) -> int:
        """Capacity of the KV cache, tokens."""
        return self.cache_blocks * self.block_tokens


def read_model_config(name: str, folder: Path) -> dict[str, Any]:
    """Return a model's config.json. Raises StartError if it is missing or invalid."""
    path = folder / "config.json"
    if not path.is_file():
        message = (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            f"'{name}'. Use `repo_type` argument if needed."
        )
        raise crash_error(message)
    try:
        config = bounds.read_config(path)
    except ValueError:
        raise crash_error(f"OSError: It looks like the config file at '{path}' is not a valid JSON file.") from None
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise validation_error("ModelConfig", "Value error, No model architectures are specified", "value_error")
    return config


def build_config(arguments: Arguments, model: Mapping[str, Any], folder: Path, version: str) -> Config:
    """Return the settings. Raises StartError with the last lines of vLLM's traceback."""
    release, hybrid, architecture = parse_release(version), is_hybrid(model), str(model["architectures"][0])
    _check_ranges(arguments, release)
    text_settings = text_config(model)
    model_length = _model_length(arguments, bounds.count_or_none(text_settings.get("max_position_embeddings")) or 4096)
    has_chunked_prefill = release <= LAST_RELEASE_ALWAYS_CHUNKING or arguments.switch("enable_chunked_prefill", True)
    has_prefix_caching = _prefix_caching(arguments, hybrid, architecture, release)
    dtype = arguments.text("kv_cache_dtype", "auto")
    names = arguments.values.get("served_model_name") or [arguments.model]
    template_kwargs = arguments.values.get("default_chat_template_kwargs") or {}
    return Config(
        model=arguments.model,
        served_names=tuple(str(name) for name in names),
        architecture=architecture,
        hybrid=hybrid,
        max_model_len=model_length,
        budget=arguments.number(
            "max_num_batched_tokens",
            DEFAULT_BATCHED_TOKENS if has_chunked_prefill else max(model_length, DEFAULT_BATCHED_TOKENS),
        ),
        max_num_seqs=arguments.number("max_num_seqs", DEFAULT_MAX_SEQS),
        chunked_prefill=has_chunked_prefill,
        prefix_caching=has_prefix_caching,
        mamba_cache_mode=_mamba_mode(arguments, hybrid and has_prefix_caching, architecture, release),
        kv_cache_dtype=dtype,
        quantization=arguments.values.get("quantization") or _quantization(model),
        utilization=float(
            arguments.text("gpu_memory_utilization", "0.92" if release >= FIRST_RELEASE_WITH_LARGER_SHARE else "0.9")
        ),
        block_tokens=block_tokens(model, dtype),
        padding_percent=padding_percent(model, dtype),
        api_keys=tuple(arguments.values.get("api_key") or ()),
        port=arguments.number("port", 8000),
        parses_thinking="reasoning_parser" in arguments.values or architecture.startswith("GptOss"),
        thinks_by_default=bool(template_kwargs.get("enable_thinking", True)),
        eager=arguments.switch("enforce_eager", False),
        shard_count=_count_shards(folder),
        weight_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")) * SIZE_SCALE,
        pooling=arguments.text("runner", "auto") == "pooling",
        auto_tools=arguments.switch("enable_auto_tool_choice", False),
        tool_parser=arguments.text("tool_call_parser", ""),
        accepts_pictures=architecture.endswith("ForConditionalGeneration")
        and not arguments.switch("language_model_only", False),
        hidden_size=bounds.count_or_none(text_settings.get("hidden_size")) or 128,
        echoed_values={name: arguments.values[name] for name in ECHOED_OPTIONS if name in arguments.values},
    )


def _check_ranges(arguments: Arguments, release: Release) -> None:
    """Raise StartError, with Pydantic's message, for a number that vLLM's config classes reject."""
    for key, value in arguments.values.items():
        violation = (
            option_values.find_broken_limit(key.replace("_", "-"), value, release)
            if isinstance(value, int | float)
            else None
        )
        if violation is None:
            continue
        config_class, limit = violation
        if config_class == "socket.bind":
            raise crash_error("OverflowError: bind(): port must be 0-65535.")
        if config_class.endswith("Config"):
            kind, comparison = LIMIT_ERRORS[limit.rstrip("-.0123456789")]
            raise validation_error(
                config_class, f"Input should be {comparison} {limit.lstrip('<>=')}", kind, field=key, value=value
            )


def _prefix_caching(arguments: Arguments, hybrid: bool, architecture: str, release: Release) -> bool:
    if is_attention_free(architecture):
        return arguments.switch("enable_prefix_caching", False)
    if not hybrid:
        return arguments.switch("enable_prefix_caching", True)
    if release <= LAST_RELEASE_WITHOUT_HYBRID_CACHING or (
        release < FIRST_RELEASE_WITH_ALIGN_MODE and not supports_all_mode(architecture)
    ):
        return False
    return arguments.switch("enable_prefix_caching", release >= FIRST_RELEASE_WITH_HYBRID_CACHING_ON)


def _mamba_mode(arguments: Arguments, caches_states: bool, architecture: str, release: Release) -> str:
    """Return the Mamba cache mode: `all` (every state is cached), `align` (those at the ends of blocks) or `none`."""
    if not caches_states:
        return "none"
    if release < FIRST_RELEASE_WITH_ALIGN_MODE:
        return "all"
    default = "all" if supports_all_mode(architecture) and release < FIRST_RELEASE_WITH_HYBRID_CACHING_ON else "align"
    mode = arguments.text("mamba_cache_mode", default)
    return (
        "all"
        if mode == "all" and supports_all_mode(architecture) and release < FIRST_RELEASE_IGNORING_CACHE_MODE
        else "align"
    )


def _quantization(model: Mapping[str, Any]) -> str | None:
    quantization = model.get("quantization_config") or text_config(model).get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return method if isinstance(method, str) else None


def _model_length(arguments: Arguments, max_length: int) -> int:
    length = arguments.number("max_model_len", max_length)
    length = max_length if length == -1 else length
    if length > max_length:
        message = (
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len (max_position_embeddings={max_length}.0"
            " or model_max_length=None in model's config.json). To allow overriding this maximum, set the env var"
            " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses"
            " relative position encoding (RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute"
            " position encoding, positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds error."
        )
        raise validation_error("ModelConfig", f"Value error, {message}", "value_error")
    return length


def _count_shards(folder: Path) -> int:
    """Return the number of weight files. Raises StartError if a file in the index is missing or incomplete."""
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        return len(list(folder.glob("*.safetensors")))
    names = sorted(set(_weight_map(index_path).values()))
    for name in names:
        if not (folder / name).is_file():
            raise crash_error(f"FileNotFoundError: [Errno 2] No such file or directory: '{folder / name}'")
        if (folder / name).stat().st_size < MIN_SHARD_BYTES:
            kind = "safetensors_rust.SafetensorError"
            raise crash_error(f"{kind}: Error while deserializing header: MetadataIncompleteBuffer")
    return len(names)


def _weight_map(index_path: Path) -> dict[str, str]:
    try:
        weight_map = bounds.parse_json(
            bounds.read_bytes(index_path, bounds.MAX_INDEX_BYTES), max_bytes=bounds.MAX_INDEX_BYTES
        )["weight_map"]
        return {str(tensor): str(file) for tensor, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise crash_error(f"{type(error).__name__}: {error}") from None


def validation_error(
    config_class: str, message: str, kind: str, *, field: str = "", value: object = None
) -> StartError:
    """Return the error for a config that Pydantic rejects, with the end of the traceback.

    Args:
        kind: Pydantic's error type.
        field: the invalid field; empty if the config as a whole is invalid.
    """
    shown_input = "ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs"
    if field:
        shown_input = f"{value!r}, input_type={type(value).__name__}"
    lines = (
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 8, in <module>',
        "    sys.exit(main())",
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config_class}",
        *([field] if field else []),
        f"  {message} [type={kind}, input_value={shown_input}]",
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}",
    )
    return StartError(*lines)


def check_before_weights(config: Config, version: str) -> None:
    """Raise StartError for settings that the API server rejects."""
    release = parse_release(version)
    if config.budget < config.max_num_seqs:
        message = f"max_num_batched_tokens ({config.budget}) must be greater than or equal to max_num_seqs ({config.max_num_seqs})."
        raise validation_error("SchedulerConfig", f"Value error, {message}", "value_error")
    if not config.chunked_prefill and config.budget < config.max_model_len:
        message = (
            f"max_num_batched_tokens ({config.budget}) is smaller than max_model_len ({config.max_model_len}). This effectively"
            " limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences."
            " Please increase max_num_batched_tokens or decrease max_model_len."
        )
        raise validation_error("SchedulerConfig", f"Value error, {message}", "value_error")
    if config.mamba_cache_mode == "align" and not config.chunked_prefill and release >= FIRST_RELEASE_WITH_ALIGN_MODE:
        feature = "Mamba prefix caching" if release >= FIRST_RELEASE_IGNORING_CACHE_MODE else "mamba cache mode 'align'"
        raise validation_error(
            "VllmConfig", f"Assertion failed, Chunked prefill is required for {feature}.", "assertion_error"
        )
    if FIRST_RELEASE_WITH_BLOCK_CHECK <= release < FIRST_RELEASE_CHECKING_BLOCK_IN_CORE and _block_size_error(config):
        raise validation_error("VllmConfig", f"Assertion failed, {_block_size_error(config)}", "assertion_error")


def check_after_weights(config: Config, version: str) -> None:
    """Raise StartError for settings that the engine core rejects."""
    if FIRST_RELEASE_CHECKING_BLOCK_IN_CORE <= parse_release(
        version
    ) < FIRST_RELEASE_WITHOUT_BLOCK_CHECK and _block_size_error(config):
        raise _core_error(f"AssertionError: {_block_size_error(config)}")
    if config.hybrid and config.max_num_seqs > config.cache_blocks:
        message = f"max_num_seqs ({config.max_num_seqs}) exceeds available Mamba cache blocks ({config.cache_blocks})."
        raise _core_error(f"ValueError: {message}")


def _block_size_error(config: Config) -> str:
    """Return the error message for a block size that is too large, or an empty string."""
    if config.mamba_cache_mode != "align" or config.block_tokens <= config.budget:
        return ""
    return f"In Mamba cache align mode, block_size ({config.block_tokens}) must be <= max_num_batched_tokens ({config.budget})."


def _core_error(message: str) -> StartError:
    log_prefix = f"(EngineCore pid=77) ERROR {time.strftime('%m-%d %H:%M:%S')} [core.py:1510]"
    lines = (
        f"{log_prefix} EngineCore failed to start.",
        f"{log_prefix} Traceback (most recent call last):",
        f"{log_prefix} {message}",
        "Process EngineCore:",
        "Traceback (most recent call last):",
        message,
        "Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    return StartError(*lines)
