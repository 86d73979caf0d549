"""Paths that clients of the engines use, each a POST with the served name as `model` in a JSON body.

A gateway routes what an engine of its group serves, and nothing else: paths that load adapters, put a server to sleep or profile
it are no client's. Read off the route tables of the engines' packages: vLLM 0.10.2 to 0.33.0, SGLang 0.5.6 to 0.5.23, and of
llama-server b11549.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class ApiPath:
    """A path of an engine's HTTP API."""

    path: str
    #: the first release that is known to serve it; empty where every supported release does
    since: str = ""


#: served by every engine that speaks OpenAI's API
OPENAI = tuple(
    ApiPath(path)
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        RESPONSES,
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
    )
)


def since(table: Iterable[ApiPath], path: str) -> str:
    """Return the first release that serves a path; empty where every supported one does, or none is known to."""
    return next((served.since for served in table if served.path == path), "")


def union(tables: Iterable[Iterable[ApiPath]]) -> tuple[str, ...]:
    """Return the paths of several engines, each once, in the order in which they come."""
    return tuple(dict.fromkeys(served.path for table in tables for served in table))
