"""What is known of the shipped recipes beside what they say: for what, how large, how fast by whose report.

A figure without a source is not written here. bytes_per_token is arithmetic over a model's config.json
(engines/model/roofline.py): it gives a ceiling, never an expectation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

USES = ("chat", "coding", "agents", "long-context", "search")


@dataclass(frozen=True)
class Reported:
    """Tokens a second of one stream. date: of the report; "" where it has none."""

    tok_per_s: float
    source: str
    date: str = ""

    def __str__(self) -> str:
        return f"{self.tok_per_s:g} tok/s reported by {self.source}, {self.date or 'no date given'}"


@dataclass(frozen=True)
class Known:
    """model: its id on the hub. uses: of USES. weights_gb: 0 for not known. bytes_per_token: that a token reads; 0 the same."""

    model: str
    uses: tuple[str, ...]
    weights_gb: float = 0.0
    bytes_per_token: int = 0
    reported: Reported | None = None


_QWEN35 = Known(
    "Qwen/Qwen3.5-35B-A3B-FP8",
    ("chat", "coding", "agents"),
    weights_gb=35.0,
    bytes_per_token=3_650_000_000,
    reported=Reported(47.0, "ai-muninn.com (one ASUS GX10, FP8, no speculation)", "2026-03-05"),
)
#: by the recipe's name; those that are not here are yours
KNOWN: Mapping[str, Known] = {
    "glm-4.7-flash": Known("zai-org/GLM-4.7-Flash", ("chat", "coding", "agents")),
    "gpt-oss-120b": Known(
        "openai/gpt-oss-120b",
        ("chat", "coding", "agents"),
        weights_gb=63.0,
        reported=Reported(57.5, "kubis.ai (llama-benchy 0.3.5, 50 runs, no speculation)"),
    ),
    "gpt-oss-120b-gguf": Known("ggml-org/gpt-oss-120b-GGUF", ("chat", "coding", "agents"), weights_gb=64.0),
    "llama-3.1-8b": Known(
        "meta-llama/Llama-3.1-8B-Instruct", ("chat",), weights_gb=16.1, bytes_per_token=16_060_000_000
    ),
    "qwen3-1.7b": Known("Qwen/Qwen3-1.7B", ("chat",), weights_gb=3.4),
    "qwen3-coder-next": Known("Qwen/Qwen3-Coder-Next-FP8", ("coding", "agents"), weights_gb=80.0),
    "qwen3-embedding-0.6b": Known("Qwen/Qwen3-Embedding-0.6B", ("search",), weights_gb=1.2),
    "qwen3.5-35b": _QWEN35,
    "qwen3.5-35b-200k": replace(_QWEN35, uses=("long-context", "coding", "agents")),
    # reports are of Qwen3.6, or of other formats: recipes/qwen3.5-35b-mtp.yml names them
    "qwen3.5-35b-mtp": replace(_QWEN35, reported=None),
    "qwen3.5-35b-unchunked": replace(_QWEN35, uses=("chat",), reported=None),
}
NOTHING = Known("", ())


def of(name: str, model: str) -> Known:
    """What is known of a recipe; nothing of one that is not shipped, or that you gave another model."""
    known = KNOWN.get(name, NOTHING)
    return known if known.model == model else NOTHING
