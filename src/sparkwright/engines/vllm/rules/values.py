"""Rules about values that the engine's parser or configuration refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.flags import flag_shapes, flag_types, flag_values, known_flags
from sparkwright.engines.vllm.flags.flag_values import Misfit
from sparkwright.engines.vllm.rules.rule import Case, Example, graded, rule
from sparkwright.engines.vllm.versions import at_least, within

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
        "ranges: the fields of vLLM's config classes (engines/vllm/flags/flag_types.py names them)",
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
        option = flag_shapes.option(name, case.listed)
        if option is None or (isinstance(value, str) and (name, value) in ELSEWHERE):
            continue
        wrong = flag_values.misfit(name, value, option)
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
    return case.flag(flag_types.PLUGINS[name]) is None and (switch is None or case.flag(switch) is True)


def _certain(case: Case, name: str, wrong: Misfit) -> bool | None:
    """Return True if this engine refuses the value, None if another release may accept it, False if nothing is known of this
    release."""
    own = bool(case.listed) and isinstance(case.listed, Mapping)
    same = within(case.version, flag_types.VERSION, AFTER_KNOWN) is True
    if wrong.sort == "choice":
        return own or same or None
    if wrong.sort == "name":
        return same or (own and name in flag_types.LISTED) or (None if wrong.near else False)
    if wrong.sort == "kind":
        everywhere = name in known_flags.KNOWN[known_flags.OLDER] and name in known_flags.KNOWN[known_flags.NEWER]
        return own or everywhere or at_least(case.version, flag_types.VERSION) or None
    since, _ = flag_values.ranges()[name]
    return (case.version is None and since == flag_types.OLDEST) or at_least(case.version, since) or None
