"""A server's own error in an answer with any status: vLLM, SGLang and llama.cpp send it in a stream under HTTP 200.

A body or a chunk is an error as {"error": ...} (all of them), as {"object": "error"} (vLLM before 0.11), or if a choice ended
with "error" or "abort". A line `error: {...}` instead of `data: {...}` comes from llama.cpp of 2025.
"""

from __future__ import annotations

from typing import Any

SHOWN_CHARS = 500
#: finish reasons of a request that the server gave up
GIVEN_UP = ("error", "abort")


def message(document: Any) -> str:
    """Return the error message of a response body or chunk, or an empty string if it is no error."""
    if not isinstance(document, dict):
        return ""
    if error := document.get("error"):
        return text(error)
    if document.get("object") == "error":
        return text(document)
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") in GIVEN_UP:
            return f"the server ended the request: finish_reason {choice['finish_reason']}"
    return ""


def text(error: Any) -> str:
    """Return an error's message, or the whole error if it has none."""
    return str(error.get("message") or error if isinstance(error, dict) else error)[:SHOWN_CHARS]
