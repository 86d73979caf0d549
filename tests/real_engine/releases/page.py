"""docs/engine-agreement.md: a column a release, from the reports that are kept; what people wrote below it stays.

PYTHONPATH=src python -m tests.real_engine.releases.page        # writes it anew, without an engine
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.real_engine.cases import CASES, Prediction
from tests.real_engine.group import readings
from tests.real_engine.releases import sources, tables
from tests.real_engine.releases.cases import ALL
from tests.real_engine.releases.kept import CaseResult, Report

DOCUMENT = Path(__file__).parents[3] / "docs" / "engine-agreement.md"
#: what people write below this line stays
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
are those of the tables as they are now: `rules.check` (refused or not) and `predict.effective` (the settings).

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
    """The page as the kept reports and the tables say it; the section that people wrote is carried over."""
    reports = sources.all_reports()
    before = document.read_text() if document.exists() else ""
    notes = before[before.index(KEPT) :] if KEPT in before else f"{KEPT}\n"
    parts = [INTRODUCTION, _releases(reports), IN_EACH, _cases(reports), DATED, _dated(reports)]
    newest = [report for report in reports if not report.of_source][-1]
    return "\n".join(
        [*parts, WHOLE.format(version=newest.version), _whole(newest), _figures(reports), GROUP, _groups(), notes]
    )


def _releases(reports: Sequence[Report]) -> str:
    rows = [
        (
            item.version,
            item.date,
            item.torch,
            "none" if item.of_source else f"of {item.kernels}" if item.kernels else "its own",
            str(len(item.options)),
            str(tables.count_unknown(item)),
            str(len(item.architectures)),
            "nothing"
            if item.of_source
            else f"{sum(did.how == 'started' for did in item.cases.values())} of {len(item.cases)}",
            _agree(item),
        )
        for item in reports
    ]
    head = (
        "release",
        "run on",
        "torch",
        "kernels",
        "options",
        "not known",
        "architectures",
        "started",
        "cases that agree",
    )
    return _table(head, rows)


def _agree(report: Report) -> str:
    if report.of_source:
        return "its source was read"
    wrong = sum(bool(_wrong(name, report)) for name in report.cases)
    cannot = sum(bool(did.not_here) for did in report.cases.values())
    return f"{len(report.cases) - wrong} of {len(report.cases)}" + (f"; {cannot} can't run on a CPU" if cannot else "")


def _wrong(name: str, report: Report) -> list[str]:
    case = next((case for case in ALL if case.name == name), None)
    return [*report.cases[name].wrong, *(tables.find_contradictions(case, report) if case else [])]


def _cases(reports: Sequence[Report]) -> str:
    rows = []
    reports = [report for report in reports if not report.of_source]
    for case in ALL:
        cells = [_cell(case.name, item) for item in reports]
        flags = next((item.cases[case.name].flags for item in reports if case.name in item.cases), "")
        rows.append((case.name, case.model, f"`{flags}`", *cells))
    return _table(("case", "model", "flags", *(item.version for item in reports)), rows)


def _cell(name: str, report: Report) -> str:
    did = report.cases.get(name)
    if did is None:
        return "not asked"
    settings = did.settings
    short = [
        f"{word} {SHOWN.get(settings[name], settings[name])}"
        for word, name in (("chunks", "chunked_prefill"), ("prefix", "prefix_caching"))
        if name in settings
    ]
    mode = settings.get("mamba_cache_mode")
    short += [str(mode)] if mode not in (None, "none") else []
    message = ", ".join(short)
    if did.not_here:
        cell = f"not on a CPU ({did.not_here}); {message}"
    elif not did.starts:
        cell = f"refused ({did.exit_code})"
    else:
        cell = f"{'starts' if did.how == 'started' else 'taken'}: {message}"
    wrong = _wrong(name, report)
    return f"**{cell}**<br>{'<br>'.join(wrong)}" if wrong else cell


def _dated(reports: Sequence[Report]) -> str:
    rows = [(change.release, change.what, change.source, change.evidence(reports)) for change in tables.list_changes()]
    message = ", ".join(_unseen(reports))
    return f"{_table(('from', 'what', 'source', 'evidence'), rows)}\nReleases that the tables name, read and not seen: {message}.\n"


def _unseen(reports: Sequence[Report]) -> list[str]:
    versions = {item.version for item in reports}
    return list(dict.fromkeys(change.release for change in tables.list_changes() if change.release not in versions))


def _whole(report: Report) -> str:
    head = ("case", "model", "flags", "predicted", "what the engine did", "its own line", "s")
    rows = []
    for case in CASES:
        did = report.cases[case.name]
        wrong = "".join(f"<br>**{sentence}**" for sentence in _wrong(case.name, report))
        result = _describe_prediction(tables.predict_case(case, report.version))
        row = (
            case.name,
            did.model,
            f"`{did.flags}`",
            result,
            _describe_result(did) + wrong,
            f"`{did.line}`",
            str(did.seconds or ""),
        )
        rows.append(row)
    return _table(head, rows)


def _describe_result(did: CaseResult) -> str:
    if not did.starts:
        return f"refused ({did.exit_code}): {did.said}"
    return f"{'starts' if did.how == 'started' else 'taken'}: {_settings(did.settings)}"


def _describe_prediction(stated: Prediction) -> str:
    if stated.starts is None:
        return "nothing"
    if not stated.starts:
        return "refused"
    message = _settings({name: getattr(stated, name) for name in WORDS if getattr(stated, name) is not None})
    return f"starts: {message}"


def _settings(values: object) -> str:
    assert isinstance(values, dict)
    return ", ".join(
        f"{word} {SHOWN.get(values[name], values[name]) if isinstance(values[name], bool | None) else values[name]}"
        for name, word in WORDS.items()
        if name in values
    )


def _figures(reports: Iterable[Report]) -> str:
    lines = [f"* {item.version}, {case}: {figures}" for item in reports for case, figures in item.figures.items()]
    message = (
        "Sparkwright's own clients against the running servers (`verify_health`, `smoke_test`, and both sides' tokens):"
    )
    return f"{message}\n\n" + "\n".join(lines) + "\n"


def _groups() -> str:
    return _table(("release", "case", "predicted", "what the group did", "run on"), readings.load_readings())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render_page())
