"""A simulated tokenizer: four characters a token, with a vocabulary that grows as texts are encoded."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Sequence
from typing import Any

CHARS = 4
MOST_CHARS = 17  # maximum characters of a token, for the real engine's bound on a prompt's characters
VOCABULARY = 151_643
START, END = VOCABULARY + 1, VOCABULARY + 2  # around a message


class Tokenizer:
    """A tokenizer. Ids that it has never returned have no text."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._mutex = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        with self._mutex:
            return [self._id(text[start : start + CHARS]) for start in range(0, len(text), CHARS)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        with self._mutex:
            return "".join(self._texts.get(index, "") for index in ids)

    def chat(self, messages: Sequence[Any]) -> list[int]:
        """Return the ids of a conversation in the chat template's form, up to the assistant's turn."""
        found: list[int] = []
        for message in messages:
            role, content = (
                (message.get("role", ""), message.get("content", "")) if isinstance(message, dict) else ("", message)
            )
            calls = json.dumps(message["tool_calls"]) if isinstance(message, dict) and message.get("tool_calls") else ""
            found += [START, *self.encode(str(role)), *self.encode(_plain(content) + calls), END]
        return [*found, START, *self.encode("assistant")]

    def _id(self, piece: str) -> int:
        wanted = zlib.crc32(piece.encode()) % VOCABULARY
        while self._texts.setdefault(wanted, piece) != piece:
            wanted = (wanted + 1) % VOCABULARY
            if len(self._texts) >= VOCABULARY:
                break
        return wanted


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "<picture>")) for part in content if isinstance(part, dict))
    return str(content or "")
