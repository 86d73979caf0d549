"""Rules about options: unknown ones, those that are accepted and ignored, and values that are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.findings import Finding, Severity, Way
from sparkwright.engines.options import counterpart, elsewhere, opposite
from sparkwright.engines.vllm import environment, option_values, options
from sparkwright.engines.vllm.option_history import Existence, existence
from sparkwright.engines.vllm.option_values import Misfit
from sparkwright.engines.vllm.prediction import CHUNKED_PREFILL_OPTIONAL_SINCE, RECURRENT_PREFIX_CACHING_SINCE
from sparkwright.engines.vllm.rules.rule import HYBRID, Case, Example, graded, rule
from sparkwright.engines.vllm.versions import at_least, within


@rule(
    "unknown-flag",
    sources=(
        "the engine's own `vllm serve --help=all` where its image prints it",
        "else the table in engines/vllm/option_history.py",
    ),
    example=Example({"swap-space": 4}),
)
def unknown_flag(case: Case) -> Iterator[Finding]:
    """The engine does not start with an unknown option.
    Options are added, removed and renamed in nearly every release; argparse exits with "unrecognized arguments" and code 2, which a
    restart policy turns into a crash loop. The engine's own list decides; without it, the table of releases does.
    """
    for written, value in case.asked.flags.items():
        if value is None:
            continue
        known = existence(written.removeprefix("no-"), case.release, case.listed)
        if known.exists or (known.exists is None and not known.why):
            continue
        severity = graded(known.exists is False or None) or "warning"
        outcome = "refuses" if severity == "error" else "may refuse"
        whose = elsewhere("vllm", written)
        sentence = f"{whose or f'{written}: {known.why}'}; {case.engine} {outcome} to start."
        source = known.source or "vLLM's options by release"
        yield Finding(severity, sentence, (_instead(written, value, known, case.listed),), source, written)


def _instead(written: str, value: Any, known: Existence, listed: Collection[str]) -> Way:
    if other := counterpart("vllm", written) if elsewhere("vllm", written) else "":
        return Way(f"use {other} instead", {written: None})
    if known.near:
        return Way(f"write {known.near}", {written: None, known.near: value})
    other = "" if known.instead else opposite(written, listed or options.of_anchor(options.NEWER))
    if other and isinstance(value, bool):
        return Way(f"write {other}: {str(not value).lower()}", {written: None, other: not value})
    change: dict[str, Any] = {written: None}
    if known.instead.startswith("enable-") and value is not False:
        change[known.instead.partition(":")[0]] = False
    replaced = known.instead and not known.instead.startswith("nothing")
    return Way(f"write {known.instead} instead" if replaced else "remove it", change)


@rule(
    "switch-with-value",
    sources=("the help of 0.32.0: these take no value", "0.32.0, a real start: unrecognized arguments: False"),
    example=Example({"enable-chunked-prefill": "False"}),
)
def switch_with_value(case: Case) -> Iterator[Finding]:
    """A switch takes no value.
    `enable-chunked-prefill: "False"` becomes `--enable-chunked-prefill False`, and the engine exits with unrecognized
    arguments. In a recipe, write a switch as true or false, without quotes.
    """
    for written, value in case.asked.flags.items():
        option = option_values.option(written, case.listed)
        if option is None or "switch" not in option.kind or value is None or isinstance(value, bool):
            continue
        means = str(value).strip().lower() not in ("false", "0", "no", "off", "")
        sentence = f"{written} is a switch and takes no value, got {value!r}: {case.engine} refuses to start."
        way = Way(f"write {written}: {str(means).lower()}", {written: means})
        yield Finding("error", sentence, (way,), "the help of 0.32.0", written)


@rule(
    "unread-variable",
    sources=("`environment_variables` in vllm/envs.py of every minor release from 0.10.2 to 0.33.0",),
    example=Example(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, version="0.26.0"),
)
def unread_variable(case: Case) -> Iterator[Finding]:
    """An environment variable that vLLM does not read has no effect.
    Variables are removed and renamed without a word in the log of most releases, and many became flags. A mistyped one is never
    missed.
    """
    for name, value in case.asked.env.items():
        unread = environment.unread(name, case.version)
        if unread is None:
            continue
        severity: Severity = "warning" if unread.certain else "info"
        instead = f"write {unread.instead} under vllm: instead" if "-" in unread.instead else f"write {unread.instead}"
        way = Way(instead if unread.instead else "remove it")
        sentence = f"{name}: {unread.why}, so {value!r} has no effect."
        yield Finding(severity, sentence, (way,), "vllm/envs.py by release", "env")


@dataclass(frozen=True, slots=True)
class Ignored:
    """A flag that is accepted and has no effect, or not the expected one."""

    flag: str
    applies: Callable[[Any, Case], bool]
    since: str
    #: first release in which this no longer holds; empty if it still does
    until: str
    sentence: str
    source: str


IGNORED: tuple[Ignored, ...] = (
    Ignored(
        "enable-chunked-prefill",
        lambda value, case: value is False,
        "",
        CHUNKED_PREFILL_OPTIONAL_SINCE,
        "is ignored: chunked prefill stays on",
        "source of 0.11.0; issues 18547, 20914",
    ),
    Ignored(
        "enable-prefix-caching",
        lambda value, case: value is True and case.hybrid,
        "0.10.2",
        RECURRENT_PREFIX_CACHING_SINCE,
        "is ignored on a recurrent model: prefix caching stays off",
        "source of 0.11.0",
    ),
    Ignored(
        "mamba-cache-mode",
        lambda value, case: value != "all",
        "0.33.0",
        "",
        "has no effect: the mode follows prefix caching",
        "source of 0.33.0",
    ),
    Ignored(
        "disable-cascade-attn",
        lambda value, case: True,
        "0.32.0",
        "",
        "has no effect and will be removed in the next release",
        "the help of 0.32.0",
    ),
    Ignored("swap-space", lambda value, case: True, "0.11.0", "0.18.0", "has no effect", "#36216"),
)


@rule(
    "ignored-flag",
    sources=tuple(dict.fromkeys(f"{row.flag}: {row.source}" for row in IGNORED)),
    example=Example({"enable-chunked-prefill": False}, version="0.11.0"),
)
def ignored_flag(case: Case) -> Iterator[Finding]:
    """Some flags are accepted and have no effect.
    The running settings then differ from the recipe, and only the engine's config dump shows it.
    """
    for row in IGNORED:
        value = case.flag(row.flag)
        if value is None or not row.applies(value, case) or not case.within(row.since, row.until):
            continue
        sentence = f"{row.flag}: {str(value).lower()} {row.sentence} ({case.engine})."
        way = Way("remove it", {row.flag: None})
        yield Finding("warning", sentence, (way,), row.source, row.flag)


@rule(
    "kv-scales-on-hybrid",
    sources=("#37565, issue 37554: disabled for hybrids from 0.19 on, wrong before", "#49389: removed in 0.28"),
    example=Example({"calculate-kv-scales": True}, model=HYBRID, version="0.20.1"),
)
def kv_scales(case: Case) -> Iterator[Finding]:
    """--calculate-kv-scales does not work on a recurrent hybrid.
    Scales computed from the first batch are wrong for models with recurrent layers. Before 0.19 they were used and degraded the
    output; from 0.19 on the engine warns and uses 1.0; 0.28 removed the option.
    """
    if not case.hybrid or case.flag("calculate-kv-scales") is not True or case.within("0.28.0"):
        return
    wrong = case.within("", "0.19.0")
    outcome = "has no effect on a recurrent model (wrong scales before 0.19)"
    outcome = "degrades the output of a recurrent model" if wrong else outcome
    sentence = f"calculate-kv-scales {outcome}, and 0.28 and later refuse it."
    way = Way("remove it", {"calculate-kv-scales": None})
    yield Finding("error" if wrong else "warning", sentence, (way,), "vLLM #37565, #49389", "calculate-kv-scales")


#: values covered by a separate rule
ELSEWHERE = {("mamba-cache-mode", "all")}
#: a parser's name is checked only if this is on
ASKS_PARSER = {"tool-call-parser": "enable-auto-tool-choice"}
#: the release after the last one whose choices are all known
AFTER_KNOWN = "0.33.0.dev0"


@rule(
    "flag-value",
    sources=(
        "the engine's own `vllm serve --help=all` where its image prints it: choices, switches, lists",
        "the parser of 0.32.0, for every option; the same options are numbers in 0.11.2, 0.22.1 and 0.32.0",
        "ranges: the fields of vLLM's config classes (engines/vllm/options.json names them)",
    ),
    example=Example({"max-num-seqs": -3}),
)
def flag_value(case: Case) -> Iterator[Finding]:
    """A value must be one that the engine accepts.
    Its parser exits with "invalid choice" or "invalid int value" and code 2, its configuration with a validation error and
    code 1, both after the previous server was stopped. The image's own help decides about choices. Without it the tables of
    0.32.0 do, and what may differ in this release is a warning.
    """
    for name, value in case.asked.flags.items():
        option = option_values.option(name, case.listed)
        if option is None or (isinstance(value, str) and (name, value) in ELSEWHERE):
            continue
        wrong = option_values.misfit(name, value, option)
        severity = graded(_certain(case, name, wrong)) if wrong and _is_checked(case, name, wrong) else None
        if wrong and severity:
            yield _finding(case, name, wrong, severity == "error")


def _finding(case: Case, name: str, wrong: Misfit, certain: bool) -> Finding:
    outcome = "refuses to start" if certain else "may refuse to start"
    way = Way(f"write {name}: {wrong.near}", {name: wrong.near}) if wrong.near else Way("correct or remove it")
    source = "vLLM's config classes" if wrong.sort == "range" else "the engine's help and parser"
    sentence = f"{name} {wrong.why}: {case.engine} {outcome}."
    return Finding("error" if certain else "warning", sentence, (way,), source, name)


def _is_checked(case: Case, name: str, wrong: Misfit) -> bool:
    """Return True if the engine validates this value: names that plugins can add are validated late, and not always."""
    if wrong.sort != "name":
        return True
    switch = ASKS_PARSER.get(name)
    return case.flag(option_values.known()[name].plugin) is None and (switch is None or case.flag(switch) is True)


def _certain(case: Case, name: str, wrong: Misfit) -> bool | None:
    """Return True if this engine refuses the value, None if another release may accept it, False if nothing is known of this
    release."""
    own = bool(case.listed) and isinstance(case.listed, Mapping)
    same = within(case.version, options.VERSION, AFTER_KNOWN) is True
    if wrong.sort == "choice":
        return own or same or None
    if wrong.sort == "name":
        return same or (own and option_values.known()[name].listed) or (None if wrong.near else False)
    if wrong.sort == "kind":
        everywhere = name in options.of_anchor(options.OLDER) and name in options.of_anchor(options.NEWER)
        return own or everywhere or at_least(case.version, options.VERSION) or None
    since = option_values.known()[name].since
    return (case.version is None and since == options.OLDEST) or at_least(case.version, since) or None
