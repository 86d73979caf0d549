"""Rules about unknown options, options without effect, and invalid values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.findings import Finding, Fix, Severity
from sparkwright.engines.options import describe_owner, find_opposite, format_counterparts
from sparkwright.engines.vllm import environment, option_values, options
from sparkwright.engines.vllm.option_history import Existence, find_existence
from sparkwright.engines.vllm.option_values import InvalidValue
from sparkwright.engines.vllm.prediction import (
    FIRST_RELEASE_WITH_OPTIONAL_CHUNKING,
    FIRST_RELEASE_WITH_RECURRENT_CACHING,
    supports_prefix_caching,
)
from sparkwright.engines.vllm.rules.rule import HYBRID_MODEL, Case, Example, rule, severity_of
from sparkwright.engines.vllm.versions import at_least, within

#: values covered by a separate rule
VALUES_WITH_OTHER_RULES = {("mamba-cache-mode", "all")}
#: switches without which vLLM does not check a parser's name
PARSER_SWITCHES = {"tool-call-parser": "enable-auto-tool-choice"}


@rule(
    "unknown-flag",
    sources=(
        "`vllm serve --help=all` of the image, if available",
        "otherwise the tables in engines/vllm/option_history.py and releases.json",
    ),
    example=Example({"swap-space": 4}),
)
def unknown_flag(case: Case) -> Iterator[Finding]:
    """vLLM does not start with an unknown option.
    Options are added, removed and renamed in nearly every release. The engine exits with "unrecognized arguments" and code 2, and a
    restart policy turns that into a crash loop. The rule uses the engine's own help output, or else sparkwright's table of releases.
    """
    for flag, value in case.request.flags.items():
        if value is None:
            continue
        existence = find_existence(flag.removeprefix("no-"), case.release, case.listed_options)
        if existence.exists or (existence.exists is None and not existence.reason):
            continue
        severity = severity_of(existence.exists is False or None) or "warning"
        outcome = "refuses" if severity == "error" else "may refuse"
        other_engine = describe_owner("vllm", flag)
        message = f"{other_engine or f'{flag}: {existence.reason}'}; {case.engine} {outcome} to start."
        source = existence.source or "vLLM's options by release"
        fix = _suggest_replacement(flag, value, existence, case.listed_options)
        yield Finding(severity, message, (fix,), source, flag)


def _suggest_replacement(flag: str, value: Any, existence: Existence, listed_options: Collection[str]) -> Fix:
    if alternative := format_counterparts("vllm", flag) if describe_owner("vllm", flag) else "":
        return Fix(f"use {alternative} instead", {flag: None})
    if existence.similar:
        return Fix(f"write {existence.similar}", {flag: None, existence.similar: value})
    alternative = (
        ""
        if existence.replacement
        else find_opposite(flag, listed_options or options.reference_options(options.MIDDLE_REFERENCE_RELEASE))
    )
    if alternative and isinstance(value, bool):
        return Fix(f"write {alternative}: {str(not value).lower()}", {flag: None, alternative: not value})
    change: dict[str, Any] = {flag: None}
    if existence.replacement.startswith("enable-") and value is not False:
        change[existence.replacement.partition(":")[0]] = False
    has_successor = existence.replacement and not existence.replacement.startswith("nothing")
    return Fix(f"write {existence.replacement} instead" if has_successor else "remove it", change)


@rule(
    "switch-with-value",
    sources=("the help of 0.32.0: switches take no value", "0.32.0, a real start: unrecognized arguments: False"),
    example=Example({"enable-chunked-prefill": "False"}),
)
def switch_with_value(case: Case) -> Iterator[Finding]:
    """A switch takes no value.
    `enable-chunked-prefill: "False"` becomes `--enable-chunked-prefill False`, and the engine exits with "unrecognized
    arguments". In a recipe, set a switch to true or false, without quotes.
    """
    for flag, value in case.request.flags.items():
        option = option_values.find_option(flag, case.listed_options)
        if option is None or "switch" not in option.kind or value is None or isinstance(value, bool):
            continue
        is_on = str(value).strip().lower() not in ("false", "0", "no", "off", "")
        message = f"{flag} is a switch and takes no value, got {value!r}: {case.engine} refuses to start."
        fix = Fix(f"write {flag}: {str(is_on).lower()}", {flag: is_on})
        yield Finding("error", message, (fix,), "the help of 0.32.0", flag)


@rule(
    "unread-variable",
    sources=("`environment_variables` in vllm/envs.py of every minor release from 0.10.2 to 0.33.0",),
    example=Example(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, version="0.26.0"),
)
def unread_variable(case: Case) -> Iterator[Finding]:
    """An environment variable that vLLM does not read has no effect.
    Variables are removed, renamed or replaced by flags. Releases before 0.17 log no warning about an unknown or misspelled variable.
    """
    for name, value in case.request.env.items():
        unread = environment.find_unread_variable(name, case.version)
        if unread is None:
            continue
        severity: Severity = "warning" if unread.is_certain else "info"
        advice = f"write {unread.replacement}{' under vllm: instead' if '-' in unread.replacement else ''}"
        fix = Fix(advice if unread.replacement else "remove it")
        message = f"{name}: {unread.reason}, so {value!r} has no effect."
        yield Finding(severity, message, (fix,), "vllm/envs.py by release", "env")


@dataclass(frozen=True, slots=True)
class IgnoredFlag:
    """A flag that vLLM accepts, but that has no effect or an unexpected one."""

    flag: str
    applies: Callable[[Any, Case], bool]
    since: str
    #: first release in which the flag works or is refused; empty if it is still ignored
    until: str
    #: predicate of the finding's sentence
    outcome: str
    source: str


IGNORED_FLAGS: tuple[IgnoredFlag, ...] = (
    IgnoredFlag(
        "enable-chunked-prefill",
        lambda value, case: value is False,
        "",
        FIRST_RELEASE_WITH_OPTIONAL_CHUNKING,
        "is ignored: chunked prefill stays on",
        "source of 0.11.0; issues 18547, 20914",
    ),
    IgnoredFlag(
        "enable-prefix-caching",
        lambda value, case: value is True and not supports_prefix_caching(case.architecture, case.version),
        "0.10.2",
        FIRST_RELEASE_WITH_RECURRENT_CACHING,
        "is ignored on a recurrent model: prefix caching stays off",
        "source of 0.11.0; #30877",
    ),
    IgnoredFlag(
        "mamba-cache-mode",
        lambda value, case: value != "all",
        "0.33.0",
        "",
        "has no effect: the mode follows prefix caching",
        "source of 0.33.0",
    ),
    IgnoredFlag(
        "disable-cascade-attn",
        lambda value, case: True,
        "0.32.0",
        "",
        "has no effect and will be removed in the next release",
        "the help of 0.32.0",
    ),
    IgnoredFlag("swap-space", lambda value, case: True, "0.11.0", "0.18.0", "has no effect", "#36216"),
)


@rule(
    "ignored-flag",
    sources=tuple(dict.fromkeys(f"{ignored.flag}: {ignored.source}" for ignored in IGNORED_FLAGS)),
    example=Example({"enable-chunked-prefill": False}, version="0.11.0"),
)
def ignored_flag(case: Case) -> Iterator[Finding]:
    """vLLM accepts some flags but ignores them.
    The settings of the running engine then differ from the recipe. Only the config dump in its log shows that.
    """
    for ignored in IGNORED_FLAGS:
        value = case.flag(ignored.flag)
        if value is None or not ignored.applies(value, case) or not case.within(ignored.since, ignored.until):
            continue
        message = f"{ignored.flag}: {str(value).lower()} {ignored.outcome} ({case.engine})."
        fix = Fix("remove it", {ignored.flag: None})
        yield Finding("warning", message, (fix,), ignored.source, ignored.flag)


@rule(
    "kv-scales-on-hybrid",
    sources=("#37565, issue 37554: disabled for hybrids from 0.19 on, wrong before", "#49389: removed in 0.28"),
    example=Example({"calculate-kv-scales": True}, model=HYBRID_MODEL, version="0.20.1"),
)
def kv_scales(case: Case) -> Iterator[Finding]:
    """--calculate-kv-scales does not work on a recurrent hybrid.
    Scales computed from the first batch are wrong for models with recurrent layers. Before 0.19 they were used and degraded the
    output; from 0.19 on the engine logs a warning and uses 1.0; 0.28 removed the option.
    """
    if not case.is_hybrid or case.flag("calculate-kv-scales") is not True or case.within("0.28.0"):
        return
    is_wrong = case.within("", "0.19.0")
    if is_wrong:
        outcome = "degrades the output of a recurrent model"
    else:
        outcome = "has no effect on a recurrent model (wrong scales before 0.19)"
    message = f"calculate-kv-scales {outcome}, and 0.28 and later refuse it."
    fix = Fix("remove it", {"calculate-kv-scales": None})
    yield Finding("error" if is_wrong else "warning", message, (fix,), "vLLM #37565, #49389", "calculate-kv-scales")


@rule(
    "flag-value",
    sources=(
        "`vllm serve --help=all` of the image, if available: choices, switches, lists",
        "the parser of 0.32.0, for every option; the same options are numbers in 0.11.2, 0.22.1 and 0.32.0",
        "ranges: the fields of vLLM's config classes (listed in engines/vllm/options.json)",
    ),
    example=Example({"max-num-seqs": -3}),
)
def flag_value(case: Case) -> Iterator[Finding]:
    """A flag's value must be valid.
    For an invalid value, vLLM's parser exits with "invalid choice" or "invalid int value" and code 2, or its configuration with a
    validation error and code 1, in both cases after the previous server has been stopped. Choices are read from the image's help output, or
    else from the tables for 0.32.0; a value that this release may accept is a warning.
    """
    for name, value in case.request.flags.items():
        option = option_values.find_option(name, case.listed_options)
        if option is None or (isinstance(value, str) and (name, value) in VALUES_WITH_OTHER_RULES):
            continue
        invalid = option_values.find_invalid_value(name, value, option)
        if invalid is None or not _is_checked(case, name, invalid):
            continue
        severity = severity_of(_is_refused(case, name, invalid))
        if severity is None:
            continue
        outcome = "refuses to start" if severity == "error" else "may refuse to start"
        fix = (
            Fix(f"write {name}: {invalid.intended}", {name: invalid.intended})
            if invalid.intended
            else Fix("correct or remove it")
        )
        source = "vLLM's config classes" if invalid.limit == "range" else "the engine's help and parser"
        yield Finding(severity, f"{name} {invalid.reason}: {case.engine} {outcome}.", (fix,), source, name)


def _is_checked(case: Case, name: str, invalid: InvalidValue) -> bool:
    """Return True if the engine validates this value: not a parser's name if a plugin is set or the parser's switch is off."""
    if invalid.limit != "name":
        return True
    switch = PARSER_SWITCHES.get(name)
    has_plugin = case.flag(option_values.known_options()[name].plugin) is not None
    return not has_plugin and (switch is None or case.flag(switch) is True)


def _is_refused(case: Case, name: str, invalid: InvalidValue) -> bool | None:
    """Return True if this release refuses the value, None if it may refuse it, False if unknown."""
    has_shapes = bool(case.listed_options) and isinstance(case.listed_options, Mapping)
    is_table_release = within(case.version, options.TABLE_RELEASE, options.FIRST_RELEASE_WITH_UNKNOWN_CHOICES) is True
    if invalid.limit == "choice":
        return has_shapes or is_table_release or None
    if invalid.limit == "name":
        is_listed = has_shapes and option_values.known_options()[name].listed
        return is_table_release or is_listed or (None if invalid.intended else False)
    if invalid.limit == "kind":
        reference_releases = (options.OLDEST_REFERENCE_RELEASE, options.MIDDLE_REFERENCE_RELEASE)
        is_in_all_releases = all(
            name in options.reference_options(reference_release) for reference_release in reference_releases
        )
        return has_shapes or is_in_all_releases or at_least(case.version, options.TABLE_RELEASE) or None
    since = option_values.known_options()[name].since
    return (case.version is None and since == options.OLDEST_COMPARED_RELEASE) or at_least(case.version, since) or None
