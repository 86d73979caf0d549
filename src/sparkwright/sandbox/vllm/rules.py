"""Combinations of settings that an engine refuses, by version: before its weights load, or after."""

from __future__ import annotations

import time

from sparkwright.sandbox.vllm.command_line.arguments import Refused
from sparkwright.sandbox.vllm.command_line.flags import Release, release
from sparkwright.sandbox.vllm.config import ALIGN_SINCE, MODE_GONE, Config, invalid

BLOCK_CHECK_SINCE: Release = (0, 17, 0)
BLOCK_CHECK_LATE_SINCE: Release = (0, 18, 0)  # the block size is known only after the attention backend
BLOCK_CHECK_GONE: Release = (0, 27, 0)


def before_weights(config: Config, version: str) -> None:
    """Raise Refused for settings that the API server refuses."""
    now = release(version)
    if config.budget < config.max_num_seqs:
        message = f"max_num_batched_tokens ({config.budget}) must be greater than or equal to max_num_seqs ({config.max_num_seqs})."
        raise invalid("SchedulerConfig", f"Value error, {message}", "value_error")
    if not config.chunked_prefill and config.budget < config.max_model_len:
        message = (
            f"max_num_batched_tokens ({config.budget}) is smaller than max_model_len ({config.max_model_len}). This effectively"
            " limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences."
            " Please increase max_num_batched_tokens or decrease max_model_len."
        )
        raise invalid("SchedulerConfig", f"Value error, {message}", "value_error")
    if config.mamba_cache_mode == "align" and not config.chunked_prefill and now >= ALIGN_SINCE:
        what = "Mamba prefix caching" if now >= MODE_GONE else "mamba cache mode 'align'"
        raise invalid("VllmConfig", f"Assertion failed, Chunked prefill is required for {what}.", "assertion_error")
    if BLOCK_CHECK_SINCE <= now < BLOCK_CHECK_LATE_SINCE and _block_too_large(config):
        raise invalid("VllmConfig", f"Assertion failed, {_block_too_large(config)}", "assertion_error")


def after_weights(config: Config, version: str) -> None:
    """Raise Refused for settings that the engine's own process refuses."""
    if BLOCK_CHECK_LATE_SINCE <= release(version) < BLOCK_CHECK_GONE and _block_too_large(config):
        raise _core_failed(f"AssertionError: {_block_too_large(config)}")
    if config.hybrid and config.max_num_seqs > config.cache_blocks:
        message = f"max_num_seqs ({config.max_num_seqs}) exceeds available Mamba cache blocks ({config.cache_blocks})."
        raise _core_failed(f"ValueError: {message}")


def _block_too_large(config: Config) -> str:
    """Return the message for a block that is too large, or an empty string."""
    if config.mamba_cache_mode != "align" or config.block_tokens <= config.budget:
        return ""
    return f"In Mamba cache align mode, block_size ({config.block_tokens}) must be <= max_num_batched_tokens ({config.budget})."


def _core_failed(message: str) -> Refused:
    core = f"(EngineCore pid=77) ERROR {time.strftime('%m-%d %H:%M:%S')} [core.py:1510]"
    lines = (
        f"{core} EngineCore failed to start.",
        f"{core} Traceback (most recent call last):",
        f"{core} {message}",
        "Process EngineCore:",
        "Traceback (most recent call last):",
        message,
        "Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    return Refused("\n".join(lines), 1)
