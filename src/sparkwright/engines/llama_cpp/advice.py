"""llama.cpp's implementation of engines.advice.Advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import (
    Decision,
    Effective,
    Explained,
    ServerRequest,
    Wanted,
    WhenImpossible,
    cannot_be_asked,
)
from sparkwright.engines.findings import Finding
from sparkwright.engines.llama_cpp import flags as own
from sparkwright.engines.llama_cpp import memory as sizes
from sparkwright.engines.llama_cpp import rules
from sparkwright.engines.llama_cpp.files import SUFFIX
from sparkwright.engines.llama_cpp.gguf import ARCHITECTURE, Header
from sparkwright.engines.memory import Memory, Part

#: there is no switch for it
CHUNKED_PREFILL = ""
WHY = "it always cuts prompts into pieces of batch-size tokens"
USUAL_BATCH = 2048
_BUILD = re.compile(r"\bb?(\d{4,6})\b")


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model: its kind is in the file's header, which is not read before it is served."""

    kind: str = "unknown"
    sentence: str = "a GGUF model"
    max_position_embeddings: int | None = None


def version(text: str | None) -> Version | None:
    """Return the build in a text, as 11549 of "b11549-7e4c0a9"; None if it holds none."""
    found = _BUILD.search(text or "")
    return Version(found[1]) if found else None


def kind(model: Mapping[str, Any]) -> GgufModel:
    """See GgufModel."""
    return GgufModel()


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return nothing: llama.cpp does not read a config.json beside GGUF files."""
    return {}


def decide(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    wanted: Wanted,
    impossible: WhenImpossible,
) -> Decision:
    """Return the decision about chunked prefill; llama.cpp has no switch for it."""
    return cannot_be_asked(request, "llama.cpp", wanted, impossible, WHY)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(replace(request, flags=own.named(request.flags)), version.major if version else None, listed)
    return rules.RULES.check(case)


def effective(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """Return the settings that follow from the flags."""
    flags = own.named(request.flags)
    return Effective(
        chunked_prefill=True,
        prefix_caching=own.value(flags, "cache-prompt") is not False,
        budget=own.integer(own.value(flags, own.BUDGET)) or USUAL_BATCH,
        max_num_seqs=own.slots(flags),
        max_model_len=own.context(flags),
    )


def memory(flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
    """Return the memory of the files, of the KV cache by the header that the lock keeps, of kept prompts and of compute buffers,
    in bytes.

    locked: its files are all that the recipe downloads. Without a header the KV cache is left out.
    """
    rows, flags = locked.get("files") or (), own.named(flags)
    held = {row["path"]: row["size_bytes"] for row in rows if str(row["path"]).lower().endswith(SUFFIX)}
    if not held:
        return Memory()
    header = _header(locked)
    needs = sizes.needs(held, flags, header)
    tokens = sizes.cells(header, flags) if header and needs.kv else None
    cache = f"{tokens} tokens, by the model's header" if tokens else "the model's header does not tell its size"
    return Memory(
        bytes=needs.total,
        weights_bytes=needs.weights,
        parts=(
            Part("weights", needs.weights, "spark.lock"),
            Part("KV cache", needs.kv, cache, assumed=not tokens),
            Part("earlier prompts", needs.prompts, own.PROMPTS, later=True),
            Part(
                "host's side", needs.overhead, "compute buffers, CUDA's context, the program", assumed=True, host=True
            ),
        ),
        flag=own.CONTEXT,
        value=own.integer(own.value(flags, own.CONTEXT)) or 0,
        per_token_bytes=needs.kv / tokens if tokens else 0,
    )


def _header(locked: Mapping[str, Any]) -> Header | None:
    """Return the part of the model's header that the lock keeps; None if it keeps none."""
    values = locked.get("config")
    return Header(0, 0, dict(values)) if isinstance(values, Mapping) and values.get(ARCHITECTURE) else None


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return None: there is no such switch."""
    return None


def titles() -> Mapping[str, str]:
    """Return the titles of the rules, by name."""
    return rules.RULES.titles()


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    rule = rules.RULES.get(name)
    if rule is None:
        return None
    request, build = rule.example.asked, rule.example.build
    return Explained(
        "llama_cpp",
        rule.name,
        rule.title,
        rule.reason,
        rule.sources,
        request.flags,
        request.image,
        f"b{build}" if build else None,
        next(iter(rule.findings(rule.example))),
    )
