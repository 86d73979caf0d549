"""Options: the ones this engine does not know, and the ones it takes and ignores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.vllm.defaults import CHUNKED_PREFILL_OPTIONAL_SINCE, RECURRENT_PREFIX_CACHING_SINCE
from sparkwright.engines.vllm.flags import flag_shapes
from sparkwright.engines.vllm.flags.flag_history import existence
from sparkwright.engines.vllm.rules.rule import HYBRID, Case, Example, Finding, Way, graded, rule


@rule(
    "unknown-flag",
    sources=(
        "the engine's own `vllm serve --help=all` where its image prints it",
        "else the table in engines/vllm/flags/flag_history.py",
    ),
    example=Example({"swap-space": 4}),
)
def unknown_flag(case: Case) -> Iterator[Finding]:
    """The engine does not start with an option it does not know.
    Options come, go and are renamed with nearly every release; argparse ends with "unrecognized arguments" and exit code 2, and a
    restart policy turns that into a loop. The engine's own list decides; without it, the table of releases does.
    """
    for written, said in case.asked.flags.items():
        if said is None:
            continue
        told = existence(written.removeprefix("no-"), case.version, case.listed)
        if told.exists or (told.exists is None and not told.why):
            continue
        severity = graded(told.exists is False or None) or "warning"
        outcome = "refuses to start" if told.exists is False else "may refuse to start"
        change: dict[str, Any] = {written: None}
        if told.instead.startswith("enable-") and said is not False:
            change[told.instead.partition(":")[0]] = False
        text = (
            f"write {told.instead} instead"
            if told.instead and not told.instead.startswith("nothing")
            else "leave it out"
        )
        if told.near:
            text, change = f"write {told.near}", {written: None, told.near: said}
        yield Finding(
            severity,
            "unknown-flag",
            f"{written}: {told.why}; {case.engine} {outcome}.",
            (Way(text, change),),
            told.source or "vLLM's options by release",
            written,
        )


@rule(
    "switch-with-value",
    sources=("the help of 0.32.0: these take no value", "0.32.0, a real start: unrecognized arguments: False"),
    example=Example({"enable-chunked-prefill": "False"}),
)
def switch_with_value(case: Case) -> Iterator[Finding]:
    """A switch takes no value.
    `enable-chunked-prefill: "False"` becomes `--enable-chunked-prefill False`, and the engine stops at the word it does not
    know. A switch is true or false in a recipe, without quotes.
    """
    for written, said in case.asked.flags.items():
        option = flag_shapes.option(written, case.listed)
        if option is None or "switch" not in option.kind or said is None or isinstance(said, bool):
            continue
        means = str(said).strip().lower() not in ("false", "0", "no", "off", "")
        yield Finding(
            "error",
            "switch-with-value",
            f"{written}: {said!r} is a value, and this is a switch: {case.engine} refuses to start.",
            (Way(f"write {written}: {str(means).lower()}", {written: means}),),
            "the help of 0.32.0",
            written,
        )


@dataclass(frozen=True, slots=True)
class Ignored:
    """A flag set so is taken and does nothing, or not what it says. until: empty for: still so."""

    flag: str
    applies: Callable[[Any, Case], bool]
    since: str
    until: str
    sentence: str
    source: str


IGNORED: tuple[Ignored, ...] = (
    Ignored(
        "enable-chunked-prefill",
        lambda said, case: said is False,
        "",
        CHUNKED_PREFILL_OPTIONAL_SINCE,
        "is ignored: chunked prefill stays on",
        "source of 0.11.0; issues 18547, 20914",
    ),
    Ignored(
        "enable-prefix-caching",
        lambda said, case: said is True and case.hybrid,
        "0.10.2",
        RECURRENT_PREFIX_CACHING_SINCE,
        "is ignored on a recurrent model: prefix caching stays off",
        "source of 0.11.0",
    ),
    Ignored(
        "mamba-cache-mode",
        lambda said, case: said != "all",
        "0.33.0",
        "",
        "has no effect: the mode follows prefix caching",
        "source of 0.33.0",
    ),
    Ignored(
        "disable-cascade-attn",
        lambda said, case: True,
        "0.32.0",
        "",
        "has no effect and goes with the next release",
        "the help of 0.32.0",
    ),
    Ignored("swap-space", lambda said, case: True, "0.11.0", "0.18.0", "has no effect", "#36216"),
)


@rule(
    "ignored-flag",
    sources=tuple(dict.fromkeys(f"{row.flag}: {row.source}" for row in IGNORED)),
    example=Example({"enable-chunked-prefill": False}, version="0.11.0"),
)
def ignored_flag(case: Case) -> Iterator[Finding]:
    """Some flags are taken and do nothing.
    What was asked for is then not what runs, and only the engine's config dump shows it.
    """
    for row in IGNORED:
        said = case.flag(row.flag)
        if said is None or not row.applies(said, case) or not case.within(row.since, row.until):
            continue
        yield Finding(
            "warning",
            "ignored-flag",
            f"{row.flag}: {str(said).lower()} {row.sentence} ({case.engine}).",
            (Way("leave it out", {row.flag: None}),),
            row.source,
            row.flag,
        )


@rule(
    "kv-scales-on-hybrid",
    sources=("#37565, issue 37554: disabled for hybrids from 0.19 on, wrong before", "#49389: removed in 0.28"),
    example=Example({"calculate-kv-scales": True}, HYBRID, version="0.20.1"),
)
def kv_scales(case: Case) -> Iterator[Finding]:
    """--calculate-kv-scales is of no use on a recurrent hybrid.
    Scales computed in the first batch are wrong for models with recurrent layers. Before 0.19 they were used, and the output
    suffered; from 0.19 on the engine says so and takes 1.0; 0.28 removed the option.
    """
    if not case.hybrid or case.flag("calculate-kv-scales") is not True or case.within("0.28.0"):
        return
    wrong = case.within("", "0.19.0")
    outcome = (
        "makes the output of a recurrent model worse"
        if wrong
        else "has no effect on a recurrent model (wrong scales before 0.19)"
    )
    yield Finding(
        "error" if wrong else "warning",
        "kv-scales-on-hybrid",
        f"calculate-kv-scales {outcome}, and 0.28 and later refuse it.",
        (Way("leave it out", {"calculate-kv-scales": None}),),
        "vLLM #37565, #49389",
        "calculate-kv-scales",
    )
