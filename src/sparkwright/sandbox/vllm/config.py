"""From arguments and a model's folder to the engine's settings, or to the real engine's refusal of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.sandbox.vllm.arguments import Arguments, Refused, release

HYBRID_KEYS = ("linear_conv_kernel_dim", "mamba_d_state", "ssm_state_size", "kda_layers", "conv_L_cache")
BLOCK_TOKENS = {"fp8": 2096, "auto": 1056}  # of Qwen3.5-35B-A3B, by the type of its KV cache
DEFAULT_BUDGET = 2048  # on a GB10, in every version
DEFAULT_SEQS = 256
SMALLEST_SHARD = 1_000_000  # bytes; the pretend hub's shards have two and a half times as many


@dataclass(frozen=True)
class Config:
    """What the engine will do. utilization: share of memory it takes."""

    model: str
    served_name: str
    architecture: str
    hybrid: bool
    max_model_len: int
    budget: int
    max_num_seqs: int
    chunked_prefill: bool
    prefix_caching: bool
    kv_cache_dtype: str
    utilization: float
    api_key: str
    port: int
    thinks: bool
    shards: int

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the KV cache."""
        return BLOCK_TOKENS["fp8" if self.kv_cache_dtype.startswith("fp8") else "auto"] if self.hybrid else 16


def build(arguments: Arguments, folder: Path, version: str) -> Config:
    """The settings. Raises Refused with the last lines of a real traceback."""
    model = _model(arguments.model, folder)
    text = model.get("text_config") or model
    hybrid = any(key in text for key in HYBRID_KEYS)
    length = _length(arguments, int(text.get("max_position_embeddings", 4096)))
    chunked = arguments.switch("enable-chunked-prefill", True)
    prefix = arguments.switch("enable-prefix-caching", not hybrid or release(version) >= (0, 28))
    seqs = arguments.number("max-num-seqs", DEFAULT_SEQS)
    budget = arguments.number("max-num-batched-tokens", DEFAULT_BUDGET if chunked else max(length, DEFAULT_BUDGET))
    config = Config(
        model=arguments.model,
        served_name=arguments.text("served-model-name", arguments.model),
        architecture=str(model["architectures"][0]),
        hybrid=hybrid,
        max_model_len=length,
        budget=budget,
        max_num_seqs=seqs,
        chunked_prefill=chunked,
        prefix_caching=prefix,
        kv_cache_dtype=arguments.text("kv-cache-dtype", "auto"),
        utilization=float(arguments.text("gpu-memory-utilization", "0.92")),
        api_key=arguments.text("api-key"),
        port=arguments.number("port", 8000),
        thinks="reasoning-parser" in arguments.values,
        shards=_shards(folder),
    )
    _check(config, version)
    return config


def _check(config: Config, version: str) -> None:
    if config.budget < config.max_num_seqs:
        said = f"max_num_batched_tokens ({config.budget}) must be greater than or equal to max_num_seqs ({config.max_num_seqs})."
        raise _invalid("SchedulerConfig", f"Value error, {said}", "value_error")
    if not config.chunked_prefill and config.budget < config.max_model_len:
        said = (
            f"max_num_batched_tokens ({config.budget}) is smaller than max_model_len ({config.max_model_len}). This effectively"
            " limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences."
            " Please increase max_num_batched_tokens or decrease max_model_len."
        )
        raise _invalid("SchedulerConfig", f"Value error, {said}", "value_error")
    if config.hybrid and config.prefix_caching and not config.chunked_prefill:
        said = "Chunked prefill is required for mamba cache mode 'align'."
        raise _invalid("VllmConfig", f"Assertion failed, {said}", "assertion_error")
    if (
        config.hybrid
        and config.prefix_caching
        and (0, 17) <= release(version) <= (0, 26)
        and config.block_tokens > config.budget
    ):
        said = f"In Mamba cache align mode, block_size ({config.block_tokens}) must be <= max_num_batched_tokens ({config.budget})."
        raise _invalid("VllmConfig", f"Assertion failed, {said}", "assertion_error")


def _model(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        said = (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            f"'{name}'. Use `repo_type` argument if needed."
        )
        raise Refused(f"Traceback (most recent call last):\n{said}", 1)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _length(arguments: Arguments, most: int) -> int:
    length = arguments.number("max-model-len", most)
    if length > most:
        said = (
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len (max_position_embeddings={most}.0"
            " or model_max_length=None in model's config.json). To allow overriding this maximum, set the env var"
            " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
        raise _invalid("ModelConfig", f"Value error, {said}", "value_error")
    return length


def _shards(folder: Path) -> int:
    """How many files of weights there are; a file that the index names and that is not there is a death."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return len(list(folder.glob("*.safetensors")))
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if not (folder / name).is_file():
            said = f"FileNotFoundError: [Errno 2] No such file or directory: '{folder / name}'"
            raise Refused(f"Traceback (most recent call last):\n{said}", 1)
        if (folder / name).stat().st_size < SMALLEST_SHARD:
            said = "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"
            raise Refused(f"Traceback (most recent call last):\n{said}", 1)
    return len(names)


def _invalid(what: str, said: str, kind: str) -> Refused:
    lines = (
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 8, in <module>',
        "    sys.exit(main())",
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {what}",
        f"  {said} [type={kind}, input_value=ArgsKwargs((), {{'model': ...}}), input_type=ArgsKwargs]",
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}",
    )
    return Refused("\n".join(lines), 1)
