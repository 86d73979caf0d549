"""Vectors and scores of a server with `--runner pooling`, from the words of a text: texts that share words are similar."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

NUMBERS = 128  # length of the vectors behind a score; embeddings have as many as their model has features
#: words that are too common to matter
COMMON = frozenset(("a", "an", "and", "in", "is", "of", "on", "the", "to", "what"))


def vector(text: str, numbers: int = NUMBERS) -> list[float]:
    """Return the embedding of a text, a vector of length one."""
    found = [0.0] * numbers
    for word in [word for word in re.findall(r"\w+", text.lower()) if word not in COMMON] or ["-"]:
        digest = hashlib.sha256(word.encode()).digest()
        found[digest[0] % numbers] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(item * item for item in found)) or 1.0
    return [item / length for item in found]


def score(query: str, text: str) -> float:
    """Return the cosine similarity of two texts."""
    return sum(number * other for number, other in zip(vector(query), vector(text), strict=True))


def embeddings(model: str, texts: Sequence[str], tokens: int, numbers: int = NUMBERS) -> dict[str, Any]:
    """Return the answer of /v1/embeddings."""
    rows = [{"index": n, "object": "embedding", "embedding": vector(text, numbers)} for n, text in enumerate(texts)]
    about = {"id": f"embd-{secrets.token_hex(8)}", "object": "list", "created": int(time.time()), "model": model}
    return {**about, "data": rows, "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}}


def ranking(model: str, query: str, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Return the answer of /v1/rerank, the best text first."""
    rows = [
        {"index": n, "document": {"text": text}, "relevance_score": score(query, text)} for n, text in enumerate(texts)
    ]
    rows.sort(key=lambda row: -float(str(row["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"score-{secrets.token_hex(8)}", "model": model, "usage": usage, "results": rows}
