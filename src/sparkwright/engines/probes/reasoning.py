"""Thinking that stands in its own field, and an answer that stands in the content."""

from __future__ import annotations

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

TOKENS = 1536


def judge(reply: Reply) -> Seen:
    """Whether the thinking was kept apart."""
    if reply.cut:
        where = f"in `{reply.thinking_field}`" if reply.thinking else "in the content"
        return Seen("inconclusive", f"the answer had not ended within {TOKENS} tokens, all of them {where}")
    if not reply.content:
        came = f"; `{reply.thinking_field}` holds {quoted(reply.thinking)}" if reply.thinking else ""
        return Seen("disproved", f"content is null although the answer ended{came}", "content null")
    if not reply.thinking:
        return Seen("disproved", f"no thinking apart from the content: {quoted(reply.content)}", "no thinking apart")
    return Seen("proved", f"thinking in `{reply.thinking_field}`, the answer in the content")


PROBE = Probe(
    "reasoning",
    CHAT,
    {
        "messages": [{"role": "user", "content": "Which is larger, 9.11 or 9.9? Think briefly, then name the number."}],
        "max_tokens": TOKENS,
    },
    judge,
    thinks=True,
)
