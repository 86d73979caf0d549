"""The `verify_logs` module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engine import logs
from sparkwright.errors import Failed
from sparkwright.modules import containers
from sparkwright.modules.base import Context, Module, Result, arg


class VerifyLogs(Module["VerifyLogs.Args"]):
    """What the engine says of itself in the log of its last start is what the recipe expects.

    Settings are read from the engine's own config dump, not from the flags that were asked for. Each check is proved,
    disproved or unknown; a line that is missing proves nothing, and unknown is never green where something was expected.

    Returns: state (version, chunked_prefill, prefix_caching, kv_cache_tokens ..., null for unknown), checks.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        chunked_prefill: Literal["any", "enabled", "disabled"] = arg("what must be effective", default="any")
        expect_log: list[str] = arg("patterns that the log must hold", default_factory=list)
        forbid_log: list[str] = arg("patterns that it must not hold", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        client = context.docker()
        container = containers.inspect(client, args.name)
        if container is None:
            raise Failed(f"there is no container {args.name}.")
        lines = list(logs.lines_of(client.api.logs(args.name, since=containers.started_at(container))))
        state = logs.read(lines)
        checks = [_chunked_prefill(args.chunked_prefill, state)]
        checks += [_holds(pattern, lines, wanted=True) for pattern in args.expect_log]
        checks += [_holds(pattern, lines, wanted=False) for pattern in args.forbid_log]
        bad = [one for one in checks if one["verdict"] in ("disproved", "not found")]
        data = {"state": state.to_json(), "checks": checks, "version": state.value("version")}
        if bad:
            said = "; ".join(f"{one['check']}: {one['verdict']}" for one in bad)
            return Result(failed=True, msg=f"{said}.", data={**data, "evidence": [one["evidence"] for one in bad]})
        return Result(msg=_sentence(state), data=data)


def _chunked_prefill(expected: str, state: logs.EngineState) -> dict[str, Any]:
    value = state.value("chunked_prefill")
    evidence = state.readings["chunked_prefill"].evidence if value is not None else "no config dump in the log"
    found = {True: "enabled", False: "disabled", None: "unknown"}[value]
    if expected == "any":
        verdict = "proved" if value is not None else "unknown"
    else:
        verdict = "proved" if found == expected else "not found" if value is None else "disproved"
    return {"check": f"chunked prefill {expected}, is {found}", "verdict": verdict, "evidence": evidence}


def _holds(pattern: str, lines: list[str], *, wanted: bool) -> dict[str, Any]:
    line = next((line for line in lines if re.search(pattern, line)), None)
    verdict = "proved" if (line is not None) == wanted else "not found" if wanted else "disproved"
    name = f"log {'holds' if wanted else 'is without'} {pattern!r}"
    return {"check": name, "verdict": verdict, "evidence": (line or "no such line")[:300]}


def _sentence(state: logs.EngineState) -> str:
    def said(name: str, title: str) -> str:
        value = state.value(name)
        return (
            f"{title} {'unknown' if value is None else 'on' if value is True else 'off' if value is False else value}"
        )

    tokens = state.value("kv_cache_tokens")
    capacity = f"KV cache {tokens:,} tokens" if tokens else "KV cache unknown"
    return f"{said('chunked_prefill', 'chunked prefill')}, {said('prefix_caching', 'prefix caching')}, {capacity} (its own log)"
