"""Without an engine: the tables agree with every release that was run, and the page says what the reports hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.real_engine.releases import compare, page, tables
from tests.real_engine.releases.kept import Did, Report, load, reports, save
from tests.real_engine.releases.record import found_lines

KEPT = reports()
NEWEST = KEPT[-1]
REFUSED = Did("dense", "--swap-space 4", "asked", False, 2, said="the engine does not know: --swap-space 4.")
TAKEN = Did("dense", "--swap-space 4", "asked", True, None, {"chunked_prefill": True})


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_the_tables_agree_with_what_a_release_showed(report: Report) -> None:
    assert tables.disagreements(report) == []


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_the_log_of_a_release_was_read_as_it_is(report: Report) -> None:
    assert {name: did.wrong for name, did in report.cases.items() if did.wrong} == {}


def test_the_page_is_of_the_kept_reports() -> None:
    assert page.DOCUMENT.read_text() == page.text(), "stale: .venv/bin/python -m tests.real_engine.releases.page"


def test_a_report_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    assert load(save(NEWEST, tmp_path)) == NEWEST
    assert reports(tmp_path) == [NEWEST]


def test_a_run_of_one_release_leaves_the_others(tmp_path: Path) -> None:
    old = replace(NEWEST, version="0.9.2")
    for one in (NEWEST, old, replace(NEWEST, date="2026-01-01")):
        save(one, tmp_path)
    assert [(one.version, one.date) for one in reports(tmp_path)] == [
        ("0.9.2", NEWEST.date),
        (NEWEST.version, "2026-01-01"),
    ]


def test_what_a_release_shows_against_a_table_is_told() -> None:
    options = {name: shape for name, shape in NEWEST.options.items() if name != "enable-log-requests"}
    architectures = tuple(name for name in NEWEST.architectures if name != "Qwen3NextForCausalLM")
    cases = {**NEWEST.cases, "swap-space": TAKEN}
    told = tables.disagreements(replace(NEWEST, options=options, architectures=architectures, cases=cases))
    assert told == [
        "`--enable-log-requests` exists from 0.10.1 on (#21739 (dates))",
        "--enable-log-requests: the tables say it exists, and it does not",
        "Qwen3NextForCausalLM: the tables say it loads, and it does not",
        "swap-space: predicted that it is refused; it was accepted",
    ]


def test_evidence_is_of_the_releases_on_both_sides() -> None:
    change = tables.Change("0.28.0", "x", "", lambda report: "x" in report.options)
    old, new = replace(NEWEST, version="0.26.0", options={}), replace(NEWEST, version="0.28.0", options={"x": "word"})
    assert change.evidence([old, new]) == "seen: not yet in 0.26.0, so in 0.28.0"
    assert change.evidence([new]) == "seen in 0.28.0; when it began is read"
    assert change.evidence([old]) == "not yet in 0.26.0: read, not seen"
    assert change.evidence([]) == "read, not seen"
    assert change.evidence([replace(old, version="0.30.0")]).startswith("**wrong**")


def test_what_changed_since_the_release_before() -> None:
    old = replace(
        NEWEST,
        version="0.31.0",
        options={"a": "word", "b": "{x,y}", "c": "switch"},
        defaults={"seed": "0"},
        architectures=("A", "B"),
        lines=("one", "two"),
        cases={"swap-space": TAKEN},
    )
    new = replace(
        old,
        version="0.33.0",
        options={"b": "{x,z}", "c": "word", "d": "word"},
        defaults={"seed": "1"},
        architectures=("B", "C"),
        lines=("two",),
        cases={"swap-space": REFUSED},
        key_shown=not old.key_shown,
    )
    assert compare.before("0.33.0", [old, replace(new, version="0.34.0")]) is old
    told = compare.changes(old, new)
    assert list(told.items())[:-1] == [
        ("options that are new", ["--d word"]),
        ("options that are gone", ["--a"]),
        ("options that take something else", ["--b: +z -y", "--c: switch before, word now"]),
        ("defaults that differ", ["--seed: 0 before, 1 now"]),
        ("architectures that are new", ["C"]),
        ("architectures that are gone", ["A"]),
        ("lines of the log that are no longer found", ["one"]),
        (
            "cases that end otherwise",
            ["swap-space: taken: chunked_prefill True before, refused: the engine does not know: --swap-space 4. now"],
        ),
    ]
    assert compare.changes(old, old) == {}


def test_lines_of_the_tables_are_found_in_a_log() -> None:
    assert found_lines(["x\n(APIServer) INFO Application startup complete.\n", "Graph capturing finished in\n"]) == {
        r"Application\ startup\ complete\."
    }
