"""Renders docs/engine-agreement.md from the stored reports, with a column for each release; its last section is written by hand.

PYTHONPATH=src python -m tests.real_engine.releases.page        # writes it, without an engine
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.real_engine.cases import CASES, Prediction
from tests.real_engine.group import readings
from tests.real_engine.releases import sources, tables
from tests.real_engine.releases.cases import ALL
from tests.real_engine.releases.kept import CaseResult, Report

DOCUMENT = Path(__file__).parents[3] / "docs" / "engine-agreement.md"
#: the beginning of the section that is written by hand
KEPT = "## What differed"
WORDS = {
    "chunked_prefill": "chunked prefill",
    "prefix_caching": "prefix caching",
    "mamba_cache_mode": "mamba cache",
    "block_size": "block",
}
SHOWN = {True: "on", False: "off", None: "unknown"}

INTRODUCTION = """# What was predicted, and what the real engine did

Written by `make test-engine VERSION=...` (docs/testing.md), one release at a time; what each run showed is kept in
`tests/data/engine-agreement`. vLLM's builds for a CPU, with tiny models and the arguments of a recipe's container. The predictions
are those of the tables as they are now: `rules.check` (refused or not) and `prediction.predict_effective_settings` (the settings).

kernels: a release without a build for a CPU runs over the compiled kernels of another one; arguments, configuration, scheduler, log,
metrics and streams are its own. Of the releases with "its source was read" nothing was run: options, architectures and environment
variables were read in their wheels (`tests/real_engine/releases/wheel.py`), which for the releases above agrees with what they answered.
"""

IN_EACH = """## Case by case, in each release

**bold**: not as predicted. "starts": the engine was started and generated a token. "taken": its arguments went through vLLM's parser,
checks and configuration up to where the engine would start; no engine was started. Refusals come from there too. On 2026-11-21 all 38
cases of 0.32.0 then known were started, refusals too, and agreed. chunks, prefix: chunked prefill and prefix caching; then the Mamba cache mode.
"""

DATED = """## What the tables date, and who stood for it

"read, not seen": no release on either side of the change was run; it was read in the source or the notes of vLLM.
"""

WHOLE = """## {version}, whole

"nothing" where the model has no `config.json` or the flags are raw words, which no recipe can hold. Of a server that started, the
settings are its own (`/server_info`), and what was read in its log was compared with them. Of a refusal: its exit code, and the
sentence that a user is shown for it.
"""

GROUP = """## A group of two

`tests/real_engine/group`: the words and variables that a cluster's members are rendered with, two processes on one CPU, gloo between
them. What it says of ranks was read in the members' logs.
"""


def render_page(document: Path = DOCUMENT) -> str:
    """Return the page, with the handwritten section of the existing page."""
    reports = sources.all_reports()
    before = document.read_text() if document.exists() else ""
    notes = before[before.index(KEPT) :] if KEPT in before else f"{KEPT}\n"
    parts = [INTRODUCTION, _releases(reports), IN_EACH, _cases(reports), DATED, _dated(reports)]
    newest = [report for report in reports if not report.of_source][-1]
    parts += [WHOLE.format(version=newest.version), _whole(newest), _figures(reports), GROUP, _groups(), notes]
    return "\n".join(parts)


def _releases(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        kernels = f"of {report.kernels}" if report.kernels else "its own"
        started = f"{sum(result.how == 'started' for result in report.cases.values())} of {len(report.cases)}"
        if report.of_source:
            kernels, started = "none", "nothing"
        counts = (len(report.options), tables.count_unknown(report), len(report.architectures))
        rows.append((report.version, report.date, report.torch, kernels, *map(str, counts), started, _agree(report)))
    head = "release|run on|torch|kernels|options|not known|architectures|started|cases that agree"
    return _table(head.split("|"), rows)


def _agree(report: Report) -> str:
    if report.of_source:
        return "its source was read"
    wrong = sum(bool(_wrong(name, report)) for name in report.cases)
    cannot = sum(bool(result.not_here) for result in report.cases.values())
    return f"{len(report.cases) - wrong} of {len(report.cases)}" + (f"; {cannot} can't run on a CPU" if cannot else "")


def _wrong(name: str, report: Report) -> list[str]:
    case = next((case for case in ALL if case.name == name), None)
    return [*report.cases[name].wrong, *(tables.find_contradictions(case, report) if case else [])]


def _cases(reports: Sequence[Report]) -> str:
    rows = []
    reports = [report for report in reports if not report.of_source]
    for case in ALL:
        cells = [_cell(case.name, report) for report in reports]
        flags = next((report.cases[case.name].flags for report in reports if case.name in report.cases), "")
        rows.append((case.name, case.model, f"`{flags}`", *cells))
    return _table(("case", "model", "flags", *(report.version for report in reports)), rows)


def _cell(name: str, report: Report) -> str:
    result = report.cases.get(name)
    if result is None:
        return "not asked"
    settings, texts = result.settings, []
    for word, setting in (("chunks", "chunked_prefill"), ("prefix", "prefix_caching")):
        if setting in settings:
            texts.append(f"{word} {SHOWN.get(settings[setting], settings[setting])}")
    mode = settings.get("mamba_cache_mode")
    texts += [str(mode)] if mode not in (None, "none") else []
    if result.not_here:
        cell = f"not on a CPU ({result.not_here}); {', '.join(texts)}"
    elif not result.starts:
        cell = f"refused ({result.exit_code})"
    else:
        cell = f"{'starts' if result.how == 'started' else 'taken'}: {', '.join(texts)}"
    wrong = _wrong(name, report)
    return f"**{cell}**<br>{'<br>'.join(wrong)}" if wrong else cell


def _dated(reports: Sequence[Report]) -> str:
    rows = [(change.release, change.what, change.source, change.evidence(reports)) for change in tables.list_changes()]
    versions = {report.version for report in reports}
    unseen = dict.fromkeys(change.release for change in tables.list_changes() if change.release not in versions)
    table = _table(("from", "what", "source", "evidence"), rows)
    return f"{table}\nReleases that the tables name, read and not seen: {', '.join(unseen)}.\n"


def _whole(report: Report) -> str:
    head = ("case", "model", "flags", "predicted", "what the engine did", "its own line", "s")
    rows = []
    for case in CASES:
        result = report.cases[case.name]
        wrong = "".join(f"<br>**{sentence}**" for sentence in _wrong(case.name, report))
        predicted = _describe_prediction(tables.predict_case(case, report.version))
        outcome = _describe_result(result) + wrong
        ends = (f"`{result.line}`", str(result.seconds or ""))
        rows.append((case.name, result.model, f"`{result.flags}`", predicted, outcome, *ends))
    return _table(head, rows)


def _describe_result(result: CaseResult) -> str:
    if not result.starts:
        return f"refused ({result.exit_code}): {result.said}"
    return f"{'starts' if result.how == 'started' else 'taken'}: {_settings(result.settings)}"


def _describe_prediction(stated: Prediction) -> str:
    if stated.starts is None:
        return "nothing"
    if not stated.starts:
        return "refused"
    return f"starts: {_settings({name: value for name in WORDS if (value := getattr(stated, name)) is not None})}"


def _settings(values: Mapping[str, object]) -> str:
    texts = {name: SHOWN[value] if isinstance(value, bool | None) else value for name, value in values.items()}
    return ", ".join(f"{word} {texts[name]}" for name, word in WORDS.items() if name in texts)


def _figures(reports: Iterable[Report]) -> str:
    heading = (
        "Sparkwright's own clients against the running servers (`verify_health`, `smoke_test`, and both sides' tokens):"
    )
    lines = [f"* {report.version}, {case}: {text}" for report in reports for case, text in report.figures.items()]
    return f"{heading}\n\n" + "\n".join(lines) + "\n"


def _groups() -> str:
    return _table(("release", "case", "predicted", "what the group did", "run on"), readings.load_readings())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render_page())
