"""The APIs through which servers generate text, by their names in recipes.

A probe, a gateway's proof and a check of a client's settings write their request as a chat, and read the answer as a chat's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkwright.engines import api_paths, messages_api, openai_api, responses_api


class Converted(Protocol):
    """A converter of a chat request to an API's own form. thinks: the request asks for thinking; None if it does not say."""

    def __call__(self, chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API through which servers generate text."""

    name: str
    path: str
    request: Converted
    #: converts a whole answer to a chat's
    answer: Callable[[Any], dict[str, Any]]
    #: converts the events of a stream to a chat's whole answer
    assembled: Callable[[Sequence[Any]], dict[str, Any]]
    #: the type of a stream's first event; empty if events have no types
    first: str = ""
    #: the types of the event that ends a stream; empty if `[DONE]` does
    last: frozenset[str] = frozenset()

    def disorder(self, events: Sequence[Any]) -> str:
        """Return the error in the order of a stream's events, as a clause; empty for none."""
        kinds = [event.get("type") for event in events if isinstance(event, dict)]
        if not self.first or not kinds or kinds[0] == self.first:
            return ""
        return f"the stream begins with `{str(kinds[0])[:40]}` instead of `{self.first}`, which its clients refuse"


def _chat(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    return dict(chat)


def _as_it_is(body: Any) -> dict[str, Any]:
    return body if isinstance(body, dict) else {"choices": []}


CHAT = Dialect("chat", openai_api.CHAT, _chat, _as_it_is, openai_api.assembled)
MESSAGES = Dialect(
    "messages",
    api_paths.MESSAGES,
    messages_api.request,
    messages_api.answer,
    messages_api.assembled,
    messages_api.FIRST,
    messages_api.LAST,
)
RESPONSES = Dialect(
    "responses",
    api_paths.RESPONSES,
    responses_api.request,
    responses_api.answer,
    responses_api.assembled,
    responses_api.FIRST,
    responses_api.LAST,
)
#: the APIs beside the chat, by the names of their probes
OTHERS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (MESSAGES, RESPONSES)}
BY_PATH: Mapping[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, MESSAGES, RESPONSES)}
