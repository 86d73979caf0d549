"""What is known of the shipped recipes beside what they say: for what, how large, how fast by whose report.

A figure without a source is not written here. bytes_per_token is arithmetic over a model's config.json
(engines/model/roofline.py): it gives a ceiling, never an expectation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """uses: of USES. weights_gb: 0 for not known. bytes_per_token: that one token reads; 0 for not known."""

    uses: tuple[str, ...]
    weights_gb: float = 0.0
    bytes_per_token: int = 0
    reported: Reported | None = None


_QWEN35 = Known(
    ("chat", "coding", "agents"),
    weights_gb=35.0,
    bytes_per_token=3_650_000_000,
    reported=Reported(47.0, "ai-muninn.com (one ASUS GX10, FP8, no speculation)", "2026-03-05"),
)
#: by the recipe's name; those that are not here are yours
KNOWN: Mapping[str, Known] = {
    "glm-4.7-flash": Known(("chat", "coding", "agents")),
    "gpt-oss-120b": Known(
        ("chat", "coding", "agents"),
        weights_gb=63.0,
        reported=Reported(57.5, "kubis.ai (llama-benchy 0.3.5, 50 runs, no speculation)"),
    ),
    "gpt-oss-120b-gguf": Known(("chat", "coding", "agents"), weights_gb=64.0),
    "llama-3.1-8b": Known(("chat",), weights_gb=16.1, bytes_per_token=16_060_000_000),
    "qwen3-1.7b": Known(("chat",), weights_gb=3.4),
    "qwen3-coder-next": Known(("coding", "agents"), weights_gb=80.0),
    "qwen3-embedding-0.6b": Known(("search",), weights_gb=1.2),
    "qwen3.5-35b": _QWEN35,
    "qwen3.5-35b-200k": Known(("long-context", "coding", "agents"), 35.0, 3_650_000_000, _QWEN35.reported),
    "qwen3.5-35b-unchunked": Known(("chat",), weights_gb=35.0, bytes_per_token=3_650_000_000),
}
NOTHING = Known(())


def of(name: str) -> Known:
    """What is known of a recipe; nothing of one that is not shipped."""
    return KNOWN.get(name, NOTHING)
