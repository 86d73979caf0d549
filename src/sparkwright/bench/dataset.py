"""Prompts from a file: ShareGPT's published JSON, or JSON lines with a `prompt` each.

There is no tokenizer on a laptop, so an answer's tokens are estimated from its characters. The server counts the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.measure.workload import LONGEST, SHORTEST
from sparkwright.trust import bounds
from sparkwright.units import MIB

CHARS_PER_TOKEN = 4
ANSWER_TOKENS = 128
#: ShareGPT has 650 MB, in some 4 million parts
MOST_BYTES, MOST_PARTS = 2048 * MIB, 40_000_000
#: names of the user and the assistant in published data sets
ASKS, ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
TOKENS = ("output_tokens", "max_tokens", "completion_tokens")


def load(path: Path, count: int, *, seed: int = 1) -> list[tuple[str, int]]:
    """Return up to `count` pairs of a prompt and the tokens of its answer, drawn with this seed. Raises Refused.

    As in vLLM's own benchmark, one turn of a conversation is used, with 4 to 1024 tokens on either side.
    """
    try:
        text = bounds.bytes_of(path, MOST_BYTES).decode()
    except bounds.TooMuch as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:  # no UTF-8; a NUL in its name
        raise Refused(f"{path} can't be read: {error}.") from None
    rows = list(_share_gpt(text, path) if text.lstrip().startswith("[") else _lines(text, path))
    if not rows:
        raise Refused(
            f"{path} holds no prompt that can be used.", fix=f"One turn of {SHORTEST} to {LONGEST} tokens each."
        )
    random.Random(seed).shuffle(rows)
    return rows[:count]


def _share_gpt(text: str, path: Path) -> Iterator[tuple[str, int]]:
    try:
        data = bounds.json_of(text, most_bytes=MOST_BYTES, most_parts=MOST_PARTS)
    except ValueError as error:
        raise Refused(f"{path} is no JSON: {error}.") from None
    for row in data:
        turns = row.get("conversations") or row.get("conversation") or [] if isinstance(row, dict) else []
        if not isinstance(turns, list) or len(turns) < 2 or _who(turns[0]) not in ASKS or _who(turns[1]) not in ANSWERS:
            continue
        prompt, answer = str(turns[0].get("value") or ""), str(turns[1].get("value") or "")
        sizes = [len(part) // CHARS_PER_TOKEN for part in (prompt, answer)]
        if all(SHORTEST <= size <= LONGEST for size in sizes):
            yield prompt, sizes[1]


def _who(turn: Any) -> str:
    return str(turn.get("from", "")) if isinstance(turn, dict) else ""


def _lines(text: str, path: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = bounds.json_of(line)
        except ValueError:
            raise Refused("a line is no JSON.", where=f"{path}:{number}") from None
        prompt = row.get("prompt") if isinstance(row, dict) else row
        if not isinstance(prompt, str) or not prompt:
            raise Refused(
                'a line has no "prompt".', where=f"{path}:{number}", fix='As {"prompt": "...", "output_tokens": 128}.'
            )
        tokens = next((row[name] for name in TOKENS if isinstance(row, dict) and row.get(name)), ANSWER_TOKENS)
        if not isinstance(tokens, int) or tokens < 1:
            raise Refused(f"{tokens!r} is no number of tokens.", where=f"{path}:{number}")
        yield prompt, tokens
