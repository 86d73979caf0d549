"""Tests without an engine: the tables agree with the report of every release, and the page is up to date."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.engines.vllm.releases import TABLES_FILE
from tests.real_engine.releases import compare, install, page, sources, tables, wheel
from tests.real_engine.releases.kept import CaseResult, Report, load_report, load_reports, save_report
from tests.real_engine.releases.record import find_matched_patterns

KEPT = load_reports()
NEWEST = KEPT[-1]
EVERY = sources.all_reports()
REFUSED = CaseResult("dense", "--swap-space 4", "asked", False, 2, said="unknown argument: --swap-space 4.")
TAKEN = CaseResult("dense", "--swap-space 4", "asked", True, None, {"chunked_prefill": True})


@pytest.mark.parametrize("report", EVERY, ids=lambda report: report.version)
def test_the_tables_agree_with_the_report_of_a_release(report: Report) -> None:
    assert tables.disagreements(report) == []


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_a_release_had_no_disagreements_when_it_was_run(report: Report) -> None:
    assert {name: result.wrong for name, result in report.cases.items() if result.wrong} == {}


def test_the_page_is_up_to_date() -> None:
    assert page.DOCUMENT.read_text() == page.render_page(), "stale: .venv/bin/python -m tests.real_engine.releases.page"


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_the_source_of_a_release_has_the_names_of_its_report(report: Report) -> None:
    source = sources.load_sources()[report.version]
    assert source.options == set(report.options)
    assert source.architectures == set(report.architectures)


def test_the_file_of_sources_is_written_unchanged(tmp_path: Path) -> None:
    sources.save_sources(sources.load_sources(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == TABLES_FILE.read_text()


def write_wheel(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_a_wheel_is_read_without_executing_it(tmp_path: Path) -> None:
    parser = """raise SystemExit("run")
group.add_argument("--max-num-seqs", **kwargs["max_num_seqs"])
group.add_argument("--gpu-memory-utilization", "--device-memory-utilization", dest="x")
group.add_argument("--disable-log-stats", action="store_true")
group.add_argument("--enable-lora", **kwargs["enable_lora"])
class EngineArgs:
    model: str = "m"
"""
    frontend = "class FrontendArgs(BaseFrontendArgs):\n    disable_docs: bool = False\n    disable_paths: str = ''\n"
    registry = (
        "_TEXT_MODELS = {'NewForCausalLM': ('new', 'NewForCausalLM')}\n_PREVIOUSLY_SUPPORTED_MODELS = {'Old': '0.1'}\n"
    )
    files = {
        "vllm/engine/arg_utils.py": parser,
        "vllm/entrypoints/common/cli_args.py": frontend,
        "vllm/utils/argparse_utils.py": "class EnableDisableAction: ...\n",
        wheel.REGISTRY: registry,
        wheel.VARIABLES: "environment_variables: dict = {'VLLM_NEW': lambda: 1, 'HOME': lambda: 2}\n",
    }
    path = tmp_path / "vllm-0.40.0-py3-none-any.whl"
    write_wheel(path, files)
    source = wheel.read_wheel(path)
    assert source.options == {
        *("max-num-seqs", "gpu-memory-utilization", "device-memory-utilization", "disable-log-stats", "help"),
        *("enable-lora", "disable-lora", "disable-docs", "enable-docs", "disable-paths"),
    }
    assert (set(source.architectures), set(source.variables)) == ({"NewForCausalLM"}, {"VLLM_NEW"})
    report = source.report("0.40.0", "2026-11-26")
    assert report.of_source
    assert "architectures that are gone" in compare.describe_changes(NEWEST, report)
    write_wheel(path, {"vllm/engine/arg_utils.py": parser})
    with pytest.raises(ValueError, match="has no parser, registry or environment"):
        wheel.read_wheel(path)


def test_a_layered_engine_still_works_after_its_folder_is_moved(tmp_path: Path) -> None:
    root, moved = tmp_path / "a" / ".engine", tmp_path / "b"
    site = "venv/lib/python3.11/site-packages"
    for release, names in (("0.32.0", ["_C.so"]), ("0.33.0", [])):
        (root / release / site / "vllm").mkdir(parents=True)
        (root / release / "venv" / "bin").mkdir()
        for name in names:
            (root / release / site / "vllm" / name).write_text(release)
    install._link(root / "0.33.0" / "venv", root / "0.32.0" / "venv")
    (tmp_path / "a").rename(moved)
    venv = moved / ".engine" / "0.33.0" / "venv"
    assert install._linked(venv)
    assert (venv.parent / site / "vllm" / "_C.so").read_text() == "0.32.0"
    below = (venv.parent / site / install.BELOW).read_text().strip()
    assert (venv.parent / site / below).resolve() == (moved / ".engine" / "0.32.0" / site).resolve()
    (moved / ".engine" / "0.32.0" / site / "vllm" / "_C.so").unlink()
    assert not install._linked(venv)


def test_a_stored_report_is_loaded_unchanged(tmp_path: Path) -> None:
    assert load_report(save_report(NEWEST, tmp_path)) == NEWEST
    assert load_reports(tmp_path) == [NEWEST]


def test_a_new_report_replaces_only_the_report_of_its_release(tmp_path: Path) -> None:
    old, new = replace(NEWEST, version="0.9.2"), replace(NEWEST, date="2026-01-01")
    for report in (NEWEST, old, new):
        save_report(report, tmp_path)
    assert load_reports(tmp_path) == [old, new]


def test_contradictions_between_a_report_and_the_tables_are_found() -> None:
    options = {name: shape for name, shape in NEWEST.options.items() if name != "enable-log-requests"}
    architectures = tuple(name for name in NEWEST.architectures if name != "Qwen3NextForCausalLM")
    cases = {**NEWEST.cases, "swap-space": TAKEN}
    report = replace(NEWEST, options=options, architectures=architectures, cases=cases)
    assert tables.disagreements(report) == [
        "`--enable-log-requests` exists from 0.10.1 on (#21739 (dates))",
        "--enable-log-requests: the tables say it exists, and it does not",
        "Qwen3NextForCausalLM: the tables say it loads, and it does not",
        "swap-space: predicted that it is refused; it was accepted",
    ]


def test_evidence_of_a_change_names_the_releases_before_and_after() -> None:
    change = tables.Change("0.28.0", "x", "", lambda report: "x" in report.options)
    old, new = replace(NEWEST, version="0.26.0", options={}), replace(NEWEST, version="0.28.0", options={"x": "word"})
    assert change.evidence([old, new]) == "seen: not yet in 0.26.0, so in 0.28.0"
    assert change.evidence([new]) == "seen in 0.28.0; when it began is read"
    assert change.evidence([old]) == "not yet in 0.26.0: read, not seen"
    assert change.evidence([]) == "read, not seen"
    assert change.evidence([replace(old, version="0.30.0")]).startswith("**wrong**")


def test_changes_since_the_previous_release() -> None:
    old = replace(
        NEWEST, version="0.31.0", options={"a": "word", "b": "{x,y}", "c": "switch"}, defaults={"seed": "0"},
        architectures=("A", "B"), lines=("one", "two"), cases={"swap-space": TAKEN},
    )  # fmt: skip
    new = replace(
        old, version="0.33.0", options={"b": "{x,z}", "c": "word", "d": "word"}, defaults={"seed": "1"},
        architectures=("B", "C"), lines=("two",), cases={"swap-space": REFUSED}, key_shown=not old.key_shown,
    )  # fmt: skip
    assert compare.previous_report("0.33.0", [old, replace(new, version="0.34.0")]) is old
    changes = compare.describe_changes(old, new)
    assert "the API key" in changes
    assert list(changes.items())[:-1] == [
        ("options that are new", ["--d word"]),
        ("options that are gone", ["--a"]),
        ("options that take something else", ["--b: +z -y", "--c: switch before, word now"]),
        ("defaults that differ", ["--seed: 0 before, 1 now"]),
        ("architectures that are new", ["C"]),
        ("architectures that are gone", ["A"]),
        ("lines of the log that are no longer found", ["one"]),
        (
            "cases that end otherwise",
            ["swap-space: taken: chunked_prefill True before, refused: unknown argument: --swap-space 4. now"],
        ),
    ]
    assert compare.describe_changes(old, old) == {}


def test_matching_patterns_of_a_log_are_found() -> None:
    logs = ["x\n(APIServer) INFO Application startup complete.\n", "Graph capturing finished in\n"]
    assert find_matched_patterns(logs) == {r"Application\ startup\ complete\."}
