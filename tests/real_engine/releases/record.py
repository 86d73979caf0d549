"""Creates the report of a release from a complete run of its engine."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkwright.engines.vllm import option_values
from sparkwright.engines.vllm.log import LOG
from tests.real_engine.agreement import SETTINGS, Outcome, effective_settings
from tests.real_engine.engine import VERSION, Engine
from tests.real_engine.releases import install, wheel
from tests.real_engine.releases.asked import HELP, PLAIN, Answers
from tests.real_engine.releases.cases import KEY, STARTED
from tests.real_engine.releases.kept import CaseResult, Report

EVIDENCE_CHARS = 150
DUMPED = re.compile(r"enable_prefix_caching=\w+, .*?enable_chunked_prefill=\w+")
PROCESS = re.compile(r"^\(?\w+ pid=\d+\) ")
#: arguments with defaults that depend on the machine, the folder or the run
OWN_DEFAULTS = ("model", "model_tag", "subparser", "dispatch_function")


def build_report(outcomes: Sequence[Outcome], answers: Answers, engine: Engine) -> Report:
    plain = answers.by_case[PLAIN]
    return Report(
        version=VERSION,
        date=time.strftime("%Y-%m-%d"),
        torch=_torch(engine),
        key_shown=KEY in answers.by_case["key-on-the-command-line"].output,
        options=option_values.parse_options(answers.by_case[HELP].output),
        defaults={name: text for name, text in plain.arguments.items() if name not in OWN_DEFAULTS},
        architectures=answers.architectures,
        cases={outcome.case.name: build_case_result(outcome, engine) for outcome in outcomes},
        lines=tuple(sorted(find_matched_patterns(_texts(outcomes, answers)))),
        figures={outcome.case.name: f"{outcome.health}; {outcome.figures}" for outcome in outcomes if outcome.figures},
        kernels=install.kernels_of(engine.venv),
        variables=_variables(engine),
    )


def build_case_result(outcome: Outcome, engine: Engine) -> CaseResult:
    """Return an outcome without paths of this machine."""

    def clean(text: str) -> str:
        return text.replace(str(engine.models), "/models").replace(str(engine.venv), "/opt/engine")

    settings: Mapping[str, Any] = effective_settings(outcome)
    return CaseResult(
        model=outcome.case.model,
        flags=clean(outcome.case.shown()),
        how="started" if outcome.started else "asked",
        starts=outcome.starts,
        exit_code=outcome.exit_code,
        settings={name: settings[name] for name in (*SETTINGS, "memory_utilization") if name in settings},
        said="" if outcome.starts else clean(outcome.read.failure.value or ""),
        line=clean(_line(outcome)),
        seconds=round(outcome.took_s),
        not_here=outcome.not_here,
        wrong=tuple(clean(sentence) for sentence in outcome.wrong),
    )


def find_matched_patterns(texts: Iterable[str]) -> set[str]:
    """Return the patterns from sparkwright's tables that match a line in any of these logs."""
    rows = {row.pattern: row for row in LOG.line_patterns()}
    patterns: set[str] = set()
    for text in texts:
        possible = [row for row in rows.values() if row.pattern not in patterns and row.needle in text]
        for line in text.splitlines() if possible else ():
            patterns.update(row.pattern for row in possible if row.match(line))
    return patterns


def _texts(outcomes: Sequence[Outcome], answers: Answers) -> Iterable[str]:
    """Yield the outputs of the same cases for every release, so that releases can be compared."""
    for outcome in outcomes:
        if outcome.case.name in STARTED:
            yield (outcome.folder / "server.log").read_text(errors="replace")
    yield from (value.output for name, value in answers.by_case.items() if name != HELP)


def _line(outcome: Outcome) -> str:
    """Return the decisive line, shortened for a table."""
    if outcome.starts:
        dumped = DUMPED.search((outcome.folder / "server.log").read_text(errors="replace"))
        ends = dumped[0].split(", ") if dumped else []
        return f"Initializing a V1 LLM engine ... {ends[0]} ... {ends[-1]}" if ends else ""
    line = PROCESS.sub("", outcome.evidence()).partition(" [type=")[0]
    return line if len(line) <= EVIDENCE_CHARS else f"{line[:EVIDENCE_CHARS]}..."


def _variables(engine: Engine) -> tuple[str, ...]:
    source = next(engine.venv.glob("lib/python3.*/site-packages/vllm/envs.py"), None)
    return tuple(sorted(wheel.list_variables(source.read_bytes()))) if source else ()


def _torch(engine: Engine) -> str:
    """Return the version of torch in a venv, or in the venv whose kernels it uses."""
    kernels = install.kernels_of(engine.venv)
    venvs = (engine.venv, install.release_folder(kernels) / "venv") if kernels else (engine.venv,)
    for venv in venvs:
        for path in venv.glob("lib/python3.*/site-packages/torch-*.dist-info"):
            return path.name.removeprefix("torch-").removesuffix(".dist-info")
    return "unknown"
