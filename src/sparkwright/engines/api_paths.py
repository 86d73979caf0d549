"""API paths that the engines serve to clients, and where the requests to each path name the model.

A gateway routes only the paths that an engine of its group serves, not the administrative ones that load adapters, put a server to
sleep or profile it. Source: the route tables of vLLM 0.10.2 to 0.33.0, SGLang 0.5.6 to 0.5.23, and llama-server b11549.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MESSAGES_PATH = "/v1/messages"
COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
RESPONSES_PATH = "/v1/responses"

#: where a request names the model. json: in the JSON body. form: in a field of a multipart form. response: nowhere; the path contains
#: a response ID, which only the server that generated the response knows
ModelLocation = Literal["json", "form", "response"]
#: placeholder for a response ID in a path
RESPONSE_ID_PLACEHOLDER = "{id}"


@dataclass(frozen=True, slots=True)
class ApiPath:
    """A path of an engine's HTTP API."""

    path: str
    #: oldest release known to serve the path; empty if every supported release serves it
    since: str = ""
    method: str = "POST"
    model_location: ModelLocation = "json"


#: paths of every engine that implements OpenAI's API
OPENAI_PATHS = tuple(
    ApiPath(path)
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        RESPONSES_PATH,
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
    )
)
#: paths of a stored response, for engines that store responses
STORED_RESPONSE_PATHS = (
    ApiPath(f"{RESPONSES_PATH}/{RESPONSE_ID_PLACEHOLDER}", method="GET", model_location="response"),
    ApiPath(f"{RESPONSES_PATH}/{RESPONSE_ID_PLACEHOLDER}/cancel", model_location="response"),
)
TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH = "/v1/audio/transcriptions", "/v1/audio/translations"


def first_release(table: Iterable[ApiPath], path: str) -> str:
    """Return the oldest release that serves a path; empty if all supported releases do, or the path is not in the table."""
    return next((api_path.since for api_path in table if api_path.path == path), "")


def client_paths(path: str) -> tuple[str, ...]:
    """Return the paths that clients of an API call: Anthropic's clients also count the tokens of a conversation, to compact it in time."""
    return (path, COUNT_TOKENS_PATH) if path == MESSAGES_PATH else (path,)


def merge_paths(tables: Iterable[Iterable[ApiPath]]) -> tuple[ApiPath, ...]:
    """Return the paths of several engines, each once, in order of appearance."""
    merged: dict[str, ApiPath] = {}
    for table in tables:
        for api_path in table:
            merged.setdefault(api_path.path, api_path)
    return tuple(merged.values())


def list_paths(table: Iterable[ApiPath]) -> tuple[str, ...]:
    """Return the paths as strings."""
    return tuple(api_path.path for api_path in table)
