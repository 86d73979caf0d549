from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.module import Context, Module
from sparkwright.host.ollama import ollama_models
from sparkwright.protocol.result import Result, arg


class OllamaPs(Module["OllamaPs.Args"]):
    """List the models that the host's Ollama instances hold in memory, and how each instance runs. Changes nothing; a host
    without Ollama is fine.

    Returns: models (name, size_bytes or null, url, kind, place), present, hanging (what does not answer: it loads a model, or
    hangs).
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("how long each may take to answer, seconds", default=5.0)

    def run(self, args: Args, context: Context) -> Result:
        seen = ollama_models.inspect(context, timeout_s=args.timeout_s)
        held, names = (
            [(usage.model, usage.place) for usage in seen.held],
            ("name", "size_bytes", "url", "kind", "place"),
        )
        values = ((model.name, model.size_bytes, place.url, place.kind, place.name) for model, place in held)
        rows = [dict(zip(names, row, strict=True)) for row in values]
        answer = [f"{model.name}, {model.size_text} ({place})" for model, place in held]
        answer += [f"{place} does not answer: it is loading a model or hung" for place in seen.hanging]
        idle = f"no model loaded ({', '.join(map(str, seen.present))})" if seen.present else "Ollama is not running"
        data = {"models": rows, "present": list(map(str, seen.present)), "hanging": list(map(str, seen.hanging))}
        return Result(msg="; ".join(answer) or idle, data=data)
