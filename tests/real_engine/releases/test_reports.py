"""Without an engine: the tables agree with every release that was run, and the page says what the reports hold."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real_engine.releases import compare, install, page, sources, tables, wheel
from tests.real_engine.releases.kept import CaseResult, Report, load_report, load_reports, save_report
from tests.real_engine.releases.record import find_matched_patterns

KEPT = load_reports()
NEWEST = KEPT[-1]
EVERY = sources.all_reports()
REFUSED = CaseResult("dense", "--swap-space 4", "asked", False, 2, said="unknown argument: --swap-space 4.")
TAKEN = CaseResult("dense", "--swap-space 4", "asked", True, None, {"chunked_prefill": True})


@pytest.mark.parametrize("report", EVERY, ids=lambda report: report.version)
def test_the_tables_agree_with_what_a_release_showed(report: Report) -> None:
    assert tables.disagreements(report) == []


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_the_log_of_a_release_was_read_as_it_is(report: Report) -> None:
    assert {name: did.wrong for name, did in report.cases.items() if did.wrong} == {}


def test_the_page_is_of_the_kept_reports() -> None:
    assert page.DOCUMENT.read_text() == page.render_page(), "stale: .venv/bin/python -m tests.real_engine.releases.page"


@pytest.mark.parametrize("report", KEPT, ids=lambda report: report.version)
def test_the_source_of_a_release_tells_what_its_parser_and_registry_answered(report: Report) -> None:
    source = sources.load_sources()[report.version]
    assert source.options == set(report.options)
    assert source.architectures == set(report.architectures)


def test_the_engines_file_of_releases_is_written_as_it_is_kept(tmp_path: Path) -> None:
    sources.save_sources(sources.load_sources(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == sources.FILE.read_text()


def test_a_wheel_tells_its_options_architectures_and_variables_and_nothing_of_it_is_run(tmp_path: Path) -> None:
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
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    source = wheel.read_wheel(path)
    assert source.options == {
        *("max-num-seqs", "gpu-memory-utilization", "device-memory-utilization", "disable-log-stats", "help"),
        *("enable-lora", "disable-lora", "disable-docs", "enable-docs", "disable-paths"),
    }
    assert (source.architectures, source.variables) == ({"NewForCausalLM"}, {"VLLM_NEW"})
    report = source.report("0.40.0", "2026-11-26")
    assert report.of_source
    assert "architectures that are gone" in compare.describe_changes(NEWEST, report)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/engine/arg_utils.py", parser)
    with pytest.raises(ValueError, match="has no parser, registry or environment"):
        wheel.read_wheel(path)


def test_a_layered_engine_stays_whole_when_its_folder_is_moved(tmp_path: Path) -> None:
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


def test_a_report_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    assert load_report(save_report(NEWEST, tmp_path)) == NEWEST
    assert load_reports(tmp_path) == [NEWEST]


def test_a_run_of_one_release_leaves_the_others(tmp_path: Path) -> None:
    old = replace(NEWEST, version="0.9.2")
    for item in (NEWEST, old, replace(NEWEST, date="2026-01-01")):
        save_report(item, tmp_path)
    assert [(report.version, report.date) for report in load_reports(tmp_path)] == [
        ("0.9.2", NEWEST.date),
        (NEWEST.version, "2026-01-01"),
    ]


def test_what_a_release_shows_against_a_table_is_told() -> None:
    options = {name: shape for name, shape in NEWEST.options.items() if name != "enable-log-requests"}
    architectures = tuple(name for name in NEWEST.architectures if name != "Qwen3NextForCausalLM")
    cases = {**NEWEST.cases, "swap-space": TAKEN}
    message = tables.disagreements(replace(NEWEST, options=options, architectures=architectures, cases=cases))
    assert message == [
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
    assert compare.previous_report("0.33.0", [old, replace(new, version="0.34.0")]) is old
    message = compare.describe_changes(old, new)
    assert list(message.items())[:-1] == [
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


def test_lines_of_the_tables_are_found_in_a_log() -> None:
    assert find_matched_patterns(
        ["x\n(APIServer) INFO Application startup complete.\n", "Graph capturing finished in\n"]
    ) == {r"Application\ startup\ complete\."}
