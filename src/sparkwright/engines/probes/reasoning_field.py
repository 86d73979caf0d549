"""The probe of separate fields for thinking and for the answer."""

from __future__ import annotations

from dataclasses import replace

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

TOKENS = 1536


def judge(reply: Reply) -> Seen:
    """Judge if the thinking is separate from the content."""
    if reply.cut:
        where = f"in `{reply.thinking_field}`" if reply.thinking else "in the content"
        return Seen("inconclusive", f"the answer had not ended within {TOKENS} tokens, all of them {where}")
    if not reply.content:
        came = f"; `{reply.thinking_field}` holds {quoted(reply.thinking)}" if reply.thinking else ""
        return Seen("disproved", f"content is null although the answer ended{came}", "content null")
    if not reply.thinking:
        return Seen("disproved", f"no thinking apart from the content: {quoted(reply.content)}", "no thinking apart")
    return Seen("proved", f"thinking in `{reply.thinking_field}`, the answer in the content")


def judge_answer(reply: Reply) -> Seen:
    """Judge an answer with or without thinking before it: it must not be empty."""
    if reply.cut and not reply.content:
        return Seen("inconclusive", f"the answer had not ended within {TOKENS} tokens")
    if not reply.content:
        came = f"; `{reply.thinking_field}` holds {quoted(reply.thinking)}" if reply.thinking else ""
        return Seen("disproved", f"content is null although the answer ended{came}", "content null")
    return Seen("proved", f"the answer is in the content: {quoted(reply.content)}")


def judge_off(reply: Reply) -> Seen:
    """Judge an answer for which thinking was turned off."""
    seen = judge_answer(reply)
    note = "it thinks although a request turns that off" if reply.thinking else ""
    return replace(seen, note=note)


def judge_effort(reply: Reply) -> Seen:
    """Judge an answer for which thinking was turned off and an effort was set, which clients take for a hint about depth only."""
    note = f"`{EFFORT}` turns thinking on, also where a request turns it off" if reply.thinking else ""
    return replace(judge_answer(reply), note=note)


EFFORT = "reasoning_effort"
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
#: requests of clients that do not mention thinking, turn it off, or also set an effort
VARIANTS = (
    PROBE.in_a_stream(),
    replace(PROBE, name="reasoning, not said", rule=judge_answer, thinks=None, variant=True),
    replace(PROBE, name="reasoning, off", rule=judge_off, thinks=False, variant=True),
    replace(PROBE, name="reasoning, off, streamed", rule=judge_off, thinks=False, variant=True, streamed=True),
    replace(
        PROBE,
        name=f"reasoning, off, with {EFFORT}",
        body={**PROBE.body, EFFORT: "low"},
        rule=judge_effort,
        thinks=False,
        variant=True,
        optional=True,
    ),
)
