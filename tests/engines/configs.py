"""The collected configs of models in tests/data/configs, and their expected architectures."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "configs"

#: layers of the dense models
DENSE_LAYERS = {
    "all-minilm-l6-v1": 6, "bart-base": 6, "bge-reranker-v2-m3": 24, "chatglm3-6b": 28, "deepseek-v3.2": 61,
    "deepseek-v4-flash": 43, "deepseek-v4-flash-0731": 43, "gemma-2-9b": 42, "gemma-3-27b": 62,
    "gemma-4-26b-a4b-nvfp4": 30, "gemma-4-26b-a4b": 30, "glm-4.5v": 46, "glm-4.7-flash": 47, "glm-5.2": 78,
    "gpt-oss-120b": 36, "gpt-oss-20b": 24, "granite-3.3-8b-instruct-fp8": 40, "granite-4-8b-dense-hybrid": 40,
    "granite-4.0-micro-tf5": 40, "kimi-k2-instruct": 61, "kimi-k2.5": 61, "llama-3.1-8b-instruct": 32,
    "llama-3_3-nemotron-super-49b-v1": 80, "llama-4-scout-fp8-dynamic": 48, "made-dense-path-named-mamba": 36,
    "minimax-m2.5": 62, "qwen-7b": 32, "qwen2.5-vl-7b": 28, "qwen3-8b": 36, "qwen3-vl-30b-a3b-instruct": 48,
    "whisper-tiny": 4,
}  # fmt: skip
#: file, kind, mechanism, recurrent layers, layers
EXPECTED_ARCHITECTURES: tuple[tuple[str, str, str, int | None, int | None], ...] = (
    *((name, "dense", "", 0, layers) for name, layers in DENSE_LAYERS.items()),
    ("bamba-9b-tf5", "recurrent", "Mamba2", 29, 32),
    ("draft-dflash-qwen3.5-35b-a3b", "unknown", "", None, 8),
    ("draft-dspark-kimi-k3", "unknown", "", None, 5),
    ("draft-eagle3-qwen3-next-80b-a3b", "unknown", "", None, 1),
    ("falcon-h1-0.5b", "recurrent", "Mamba2", 36, 36),
    ("falcon-mamba-7b", "attention_free", "Mamba", 64, 64),
    ("fla-gated_deltanet_1b", "attention_free", "Gated DeltaNet", 21, 21),
    ("fla-gla_7b", "attention_free", "gated linear attention", 32, 32),
    ("fla-samba_1b", "recurrent", "Mamba", 9, 18),
    ("glm-5.3-flash", "recurrent", "KDA", 34, 45),
    ("granite-4.0-h-1b-tf5", "recurrent", "Mamba2", 36, 40),
    ("granite-4.0-h-1b", "recurrent", "Mamba2", 36, 40),
    ("jamba-1.5-mini", "recurrent", "Mamba", 28, 32),
    ("kimi-k3", "recurrent", "KDA", 69, 93),
    ("kimi-linear-48b-a3b-instruct", "recurrent", "KDA", 20, 27),
    ("lfm2-1.2b", "recurrent", "short convolution", 10, 16),
    ("lfm2-8b-a1b", "recurrent", "short convolution", 18, 24),
    ("lfm2.5-1.2b-thinking-codex-autoround", "recurrent", "short convolution", 10, 16),
    ("ling-3.0-tiny", "recurrent", "KDA", 18, 24),
    ("made-unknown-auto-map", "unknown", "", None, 36),
    ("mamba-2.8b-hf", "attention_free", "Mamba", 64, 64),
    ("mamba-codestral-7b-v0.1", "attention_free", "Mamba2", 64, 64),
    ("mamba2-130m-original", "attention_free", "Mamba2", 24, 24),
    ("minimax-m1", "recurrent", "lightning attention", 70, 80),
    ("minimax-vl-01", "recurrent", "lightning attention", 70, 80),
    ("nemotron-3-nano-omni-30b-a3b", "recurrent", "Mamba2", 23, 52),
    ("nemotron-h-56b-base-8k", "recurrent", "Mamba2", 54, 118),
    ("nvidia-nemotron-3-nano-30b-a3b-nvfp4", "recurrent", "Mamba2", 23, 52),
    ("nvidia-nemotron-3-super-120b-a12b-nvfp4", "recurrent", "Mamba2", 40, 88),
    ("nvidia-nemotron-3.5-lightning-30b-a3b-nvfp4", "recurrent", "Mamba2", 23, 52),
    ("olmo-hybrid-7b-tf5", "recurrent", "Gated DeltaNet", 24, 32),
    ("plamo-2-1b", "recurrent", "Mamba2", 8, 16),
    ("qwen3-next-80b-a3b-instruct", "recurrent", "Gated DeltaNet", 36, 48),
    ("qwen3.5-122b-a10b-nvfp4", "recurrent", "Gated DeltaNet", 36, 48),
    ("qwen3.5-27b", "recurrent", "Gated DeltaNet", 48, 64),
    ("qwen3.5-35b-a3b", "recurrent", "Gated DeltaNet", 30, 40),
    ("qwen3.6-27b-nvfp4", "recurrent", "Gated DeltaNet", 48, 64),
    ("qwen3.6-35b-a3b-nvfp4", "recurrent", "Gated DeltaNet", 30, 40),
    ("qwen3.6-35b-a3b", "recurrent", "Gated DeltaNet", 30, 40),
    ("qwen3.8-27b", "recurrent", "Gated DeltaNet", 48, 64),
    ("qwen3.8-flash-next", "recurrent", "Gated DeltaNet", 36, 48),
    ("recurrentgemma-2b", "recurrent", "RG-LRU", 18, 26),
    ("ring-mini-linear-2.0-4bit-mlx", "recurrent", "lightning attention", 16, 20),
    ("rwkv7-g1-2.9b", "attention_free", "RWKV", 32, 32),
    ("zamba2-7b", "recurrent", "Mamba2", 81, 81),
)
NAMES = tuple(row[0] for row in EXPECTED_ARCHITECTURES)


def load_config(name: str) -> dict[str, Any]:
    """Return one of the configs, parsed as JSON."""
    data: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return data
