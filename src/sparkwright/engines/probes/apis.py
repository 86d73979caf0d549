"""Probes of the other APIs that generate text: a streamed tool call through each, separate thinking, and a correct token count.

Coding agents use these: Claude Code the Messages API, Codex the Responses API. A server can call tools in one API and not in
another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparkwright.engines import api_paths, dialects
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.probes import reasoning_field, tool_call
from sparkwright.engines.probes.probe import Probe, Reply, Seen
from sparkwright.visible import count

#: more than the thinking budget in the same request
THINKING_TOKENS = 2048


def _probe(dialect: Dialect) -> Probe:
    return replace(tool_call.PROBE, name=dialect.name, path=dialect.path, streamed=True)


PROBES = {name: _probe(dialect) for name, dialect in dialects.OTHERS.items()}


def judge_count(reply: Reply) -> Seen:
    """Judge if the counted tokens are those that the server read. body: `counted` and `prompt`."""
    body = reply.body if isinstance(reply.body, dict) else {}
    counted, prompt = body.get("counted"), body.get("prompt")
    if counted is None or prompt is None:
        return Seen("disproved", "the answers name no numbers of tokens", "another count")
    if counted != prompt:
        evidence = f"it counts {count(counted, 'token')} where the answer's usage has {prompt}"
        return Seen("disproved", evidence, "another count")
    return Seen("proved", f"counts {count(counted, 'token')}, as the answer's usage does")


#: with a wrong count an agent never compacts a full context
COUNT = Probe(
    f"{dialects.MESSAGES.name}, count_tokens",
    api_paths.COUNT_TOKENS,
    tool_call.PROBE.body,
    judge_count,
    thinks=None,
    variant=True,
)


def variants(probe: Probe, names: Collection[str]) -> tuple[Probe, ...]:
    """Return the further requests for the API of a probe. names: of all probes of the recipe."""
    body = {**probe.body, "messages": tool_call.TURNS}
    found = [
        replace(probe, name=f"{probe.name}, second turn", body=body, rule=tool_call.judge_second, variant=True),
        replace(probe, name=f"{probe.name}, not streamed", streamed=False, variant=True),
    ]
    if reasoning_field.PROBE.name in names:
        thinking = {**reasoning_field.PROBE.body, "max_tokens": THINKING_TOKENS}
        about = replace(reasoning_field.PROBE, path=probe.path, body=thinking, streamed=True, variant=True)
        found.append(replace(about, name=f"{probe.name}, thinking"))
    return (*found, COUNT) if probe.name == dialects.MESSAGES.name else tuple(found)
