"""Without an engine: the runs that were kept read as their cases say, and the harness's own small parts."""

import json
from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from tests.real_engine import keep
from tests.real_engine.cases import CASES, Case
from tests.real_engine.engine import Engine
from tests.real_engine.releases import kept
from tests.real_engine.releases.install import NEWEST

KEPT = [case for case in CASES if (keep.DATA / case.name).exists()]


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_a_kept_run_reads_as_its_case_says(case: Case) -> None:
    folder, output = keep.DATA / case.name, case.expected
    state = read_log((folder / "server.log").read_bytes(), LOG)
    assert (state.ready, json.loads((folder / "result.json").read_text())["exit_code"] == 0) == (
        output.starts,
        output.starts,
    )
    if output.starts:
        assert (state.value("chunked_prefill"), state.value("prefix_caching")) == (
            output.chunked_prefill,
            output.prefix_caching,
        )
        assert state.failure.value is None
    else:
        assert state.failure.value == output.why.replace("{model}", f"/models/{case.model}")


OTHERS = [
    pytest.param(report, folder, id=f"{report.version}-{folder.name}")
    for report in kept.load_reports()
    if report.version != NEWEST
    for folder in sorted((keep.DATA.parent / f"vllm-{report.version}").glob("*/"))
]


@pytest.mark.parametrize(("report", "folder"), OTHERS)
def test_the_log_of_another_release_reads_as_its_report_says(report: kept.Report, folder: Path) -> None:
    """Of a release over another one's kernels too: its log is its own."""
    state, did = read_log((folder / "server.log").read_bytes(), LOG), report.cases[folder.name]
    assert (state.value("version"), did.how) == (report.version, "started")
    assert (state.ready, state.failure.value) == (did.starts, None)
    for name in ("chunked_prefill", "prefix_caching"):
        assert state.value(name) == did.settings[name]
    assert state.value("mamba_cache_mode") in (did.settings["mamba_cache_mode"], None)
    assert list(state.stage_s) and state.value("kv_cache_tokens") > 0


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_recipes_flags_become_the_words_of_its_container() -> None:
    case = next(case for case in CASES if case.name == "hybrid-chunked-off")
    words = ("--model", "/m", "--enforce-eager", "--max-model-len", "4096", "--no-enable-chunked-prefill")
    assert case.argv("/m") == words


def test_a_kept_log_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "venv", tmp_path / "models", tmp_path / "cache")
    log = (
        f'File "{engine.venv}/lib/python3.11/site-packages/vllm/x.py", line 1\n'
        'File "/srv/python/lib/python3.11/contextlib.py", line 210\n'
        f"model='{engine.models}/dense', mq_connect_ip=10.1.2.3 (local), file:///tmp/vllm_dist_1\n"
        "/srv/python/lib/python3.11/warnings.py:1: UserWarning\n"
        "INFO Route: /openapi.json, Methods: GET\nINFO Route: /health, Methods: GET\n"
    )
    assert keep.neutralize(log, engine) == (
        'File "/opt/engine/lib/python3.11/site-packages/vllm/x.py", line 1\n'
        'File "/usr/lib/python3.11/contextlib.py", line 210\n'
        "model='/models/dense', mq_connect_ip=192.0.2.2 (local), file:///scratch\n"
        "/usr/lib/python3.11/warnings.py:1: UserWarning\n"
        "INFO Route: /health, Methods: GET\n"
    )
