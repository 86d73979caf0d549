"""The settings of a simulated SGLang, read from its arguments and its model's folder, and its errors for invalid ones.

Source: 0.5.23.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sparkwright.engines.option_table import Option
from sparkwright.engines.sglang import flags
from sparkwright.engines.sglang.http import PAGE_TOKENS, PORT
from sparkwright.sandbox.memory import TOTAL_BYTES
from sparkwright.sandbox.serving.process import SIZE_SCALE, StartError
from sparkwright.trust import bounds

#: default on a GPU with 90 to 160 GB
DEFAULT_CHUNK_TOKENS = 8192
DEFAULT_PREFILL_TOKENS = 16384
#: memory kept free for other uses if --mem-fraction-static is not set, MiB
RESERVED_MIB = 8192 * 1.5 + 512 + 128
#: bytes of one token's keys and values: 16 layers with attention, 4 heads of 256
KV_BYTES_PER_TOKEN = 2 * 16 * 4 * 256 * 2
#: default number of concurrent requests
DEFAULT_MAX_REQUESTS = 2048
DEFAULT_BACKEND = "flashinfer"
TRACEBACK_HEADER = "Traceback (most recent call last):"
PROGRAM = "sglang serve"
#: width of the help text, characters
HELP_WIDTH = 100
NO_MODEL_ERROR = "Exception: Error: --model-path is required. Please provide the path to the model."


@dataclass(frozen=True)
class Config:
    """The settings of an SGLang server."""

    #: all arguments by name, with their effective values
    arguments: Mapping[str, Any]
    architecture: str
    quantization: str
    context: int
    #: share of the host's memory for weights and KV cache
    share: float
    weight_bytes: int
    #: maximum number of prompt tokens in one chunk
    budget: int
    chunked_prefill: bool
    #: --attention-backend was set
    is_backend_explicit: bool

    @property
    def adapters(self) -> dict[str, str]:
        """Paths of the LoRA adapters, by name."""
        pairs = (str(argument).partition("=") for argument in self.arguments["lora_paths"] or ())
        return {name: path or name for name, _, path in pairs}

    @property
    def model(self) -> str:
        return str(self.arguments["model_path"])

    @property
    def name(self) -> str:
        return str(self.arguments["served_model_name"])

    @property
    def keys(self) -> tuple[str, ...]:
        return (str(self.arguments["api_key"]),) if self.arguments["api_key"] else ()

    @property
    def has_metrics(self) -> bool:
        return bool(self.arguments["enable_metrics"])

    @property
    def static_bytes(self) -> int:
        """Size of weights and KV cache together, bytes."""
        return int(self.share * TOTAL_BYTES)

    @property
    def kv_type(self) -> str:
        """Type of the KV cache, as the log prints it."""
        torch_names = {"fp8_e5m2": "float8_e5m2", "fp8_e4m3": "float8_e4m3fn"}
        return f"torch.{torch_names.get(str(self.arguments['kv_cache_dtype']), 'bfloat16')}"

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of one token in the KV cache, bytes."""
        return KV_BYTES_PER_TOKEN // (2 if "float8" in self.kv_type else 1)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the KV cache; 0 if the weights leave no memory for it."""
        return max(0, (self.static_bytes - self.weight_bytes) // self.kv_bytes_per_token)

    @property
    def max_num_seqs(self) -> int:
        """Maximum number of running requests, limited by the size of the KV cache."""
        max_requests = self.arguments["max_running_requests"] or DEFAULT_MAX_REQUESTS
        return max(1, min(max_requests, self.kv_tokens // 1024))


def build_config(arguments: Mapping[str, Any], folder: Path) -> Config:
    """Return the settings. Raises StartError if SGLang would reject an argument or the model."""
    model_config = _read_model_config(str(arguments["model_path"]), folder)
    text_config = model_config["text_config"] if isinstance(model_config.get("text_config"), dict) else model_config
    trained_context = bounds.count_or_none(text_config.get("max_position_embeddings")) or 4096
    chunk_tokens = (
        arguments["chunked_prefill_size"] if arguments["chunked_prefill_size"] is not None else DEFAULT_CHUNK_TOKENS
    )
    share = arguments["mem_fraction_static"] or round(1 - RESERVED_MIB * 2**20 / TOTAL_BYTES, 3)
    resolved_arguments = {
        "host": arguments["host"] or "127.0.0.1",
        "port": arguments["port"] or PORT,
        "served_model_name": arguments["served_model_name"] or arguments["model_path"],
        "mem_fraction_static": share,
        "chunked_prefill_size": chunk_tokens,
        "max_prefill_tokens": arguments["max_prefill_tokens"] or DEFAULT_PREFILL_TOKENS,
        "kv_cache_dtype": arguments["kv_cache_dtype"] or "auto",
        "attention_backend": arguments["attention_backend"] or DEFAULT_BACKEND,
        "page_size": arguments["page_size"] or PAGE_TOKENS,
    }
    quantization = model_config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return Config(
        arguments={**arguments, **resolved_arguments},
        architecture=str((model_config.get("architectures") or ["unknown"])[0]),
        quantization=str(method or ""),
        context=_context_length(arguments["context_length"], trained_context),
        share=share,
        weight_bytes=_weight_bytes(folder),
        budget=chunk_tokens if chunk_tokens > 0 else DEFAULT_PREFILL_TOKENS,
        chunked_prefill=chunk_tokens > 0,
        is_backend_explicit=arguments["attention_backend"] is not None,
    )


def _read_model_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        rule = "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
        raise StartError(TRACEBACK_HEADER, f"huggingface_hub.errors.HFValidationError: {rule}: '{name}'.")
    try:
        return bounds.read_config(path)
    except ValueError:
        message = f"OSError: It looks like the config file at '{name}/config.json' is not a valid JSON file."
        raise StartError(TRACEBACK_HEADER, message) from None


def _context_length(length: int | None, trained_context: int) -> int:
    if length is None or length <= trained_context:
        return length or trained_context
    problem = (
        f"User-specified context_length ({length}) is greater than the derived context_length ({trained_context})."
    )
    advice = "To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    raise StartError(
        TRACEBACK_HEADER, f"ValueError: Warning: {problem} This may lead to incorrect model outputs. {advice}"
    )


def _weight_bytes(folder: Path) -> int:
    """Return the size of the weights. Raises StartError if a shard is missing or differs in size from the others."""
    index_path, files = folder / "model.safetensors.index.json", sorted(folder.glob("*.safetensors"))
    if index_path.is_file():
        weight_map = bounds.parse_json(
            bounds.read_bytes(index_path, bounds.MAX_INDEX_BYTES), max_bytes=bounds.MAX_INDEX_BYTES
        )["weight_map"]
        files = [folder / item for item in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise StartError(TRACEBACK_HEADER, f"FileNotFoundError: [Errno 2] No such file or directory: '{file}'")
    if len(sizes := {file.stat().st_size for file in files}) > 1:
        header = "Error while deserializing header: incomplete metadata, file not fully covered"
        raise StartError(TRACEBACK_HEADER, f"safetensors_rust.SafetensorError: {header} ({min(sizes)} bytes)")
    return sum(file.stat().st_size for file in files) * SIZE_SCALE


def check_adapters(config: Config, host_path: Callable[[str], Path]) -> None:
    """Raise StartError if an adapter's config is missing or its rank is too high. Source: lora/lora_manager.py of 0.5.23."""
    max_rank = config.arguments["max_lora_rank"]
    for name, path in config.adapters.items():
        try:
            rank = bounds.count_or_none(bounds.read_config(host_path(path) / "adapter_config.json").get("r")) or 0
        except (OSError, ValueError):
            raise StartError(
                TRACEBACK_HEADER, f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
            ) from None
        if max_rank and rank > max_rank:
            problem = "is incompatible with the current LoRA memory pool configuration."
            raise StartError(TRACEBACK_HEADER, f"ValueError: LoRA adapter {name} with rank {rank} {problem}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartError(*self.format_usage().splitlines(), f"{self.prog}: error: {message}", code=2)


def human_readable_int(value: str) -> int:
    """Parse 128, 128k or 128Ki. This function's name is part of argparse's error message, as in the real SGLang."""
    number = flags.parse_integer(value)
    if number is None:
        raise ValueError(value)
    return number


def parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of all arguments by name with underscores, None for those that are not set. Raises StartError."""
    words = list(words)
    if words and not words[0].startswith("-"):
        words[:1] = ["--model-path", words[0]]
    if not any(word.partition("=")[0] in ("--model-path", "--model") for word in words):
        raise StartError(TRACEBACK_HEADER, NO_MODEL_ERROR)
    return vars(_build_parser().parse_args(words))


def help_text() -> str:
    """Return the output of `sglang serve --help`, without the options for diffusion models."""
    header = "Usage: sglang serve <model-name-or-path> [additional-arguments]\n\n--- Help for Standard Language Model Server ---"
    return f"{header}\n{_build_parser().format_help()}\n--- Help for Diffusion Model Server ---\nusage: sglang serve [-h]\n"


@functools.lru_cache(maxsize=1)
def _build_parser() -> _Parser:
    parser = _Parser(prog=PROGRAM, formatter_class=functools.partial(argparse.HelpFormatter, width=HELP_WIDTH))
    for name, option in flags.TABLE.newest_options.items():
        parser.add_argument(*option.words, dest=name.replace("-", "_"), **_argument_options(option))
    return parser


def _argument_options(option: Option) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for an option."""
    kind = option.kind
    if kind == "switch":
        return {"action": "store_true"}
    if kind == "both":
        return {"action": argparse.BooleanOptionalAction}
    types = {"int": int, "float": float, "size": human_readable_int, "json": json.loads}
    extra: dict[str, Any] = {"nargs": "+"} if kind == "list" else {}
    extra |= {"choices": option.choices} if option.choices else {}
    return {"type": types.get(kind, str), **extra}
