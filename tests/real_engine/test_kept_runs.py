"""Tests of stored runs and of the harness, without an engine."""

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
def test_the_log_of_a_stored_run_is_read_as_expected(case: Case) -> None:
    folder, expected = keep.DATA / case.name, case.expected
    state = read_log((folder / "server.log").read_bytes(), LOG)
    assert state.ready == expected.starts
    assert (json.loads((folder / "result.json").read_text())["exit_code"] == 0) == expected.starts
    if expected.starts:
        assert state.value("chunked_prefill") == expected.chunked_prefill
        assert state.value("prefix_caching") == expected.prefix_caching
        assert state.failure.value is None
    else:
        assert state.failure.value == expected.why.replace("{model}", f"/models/{case.model}")


OTHERS = [
    pytest.param(report, folder, id=f"{report.version}-{folder.name}")
    for report in kept.load_reports()
    if report.version != NEWEST
    for folder in sorted((keep.DATA.parent / f"vllm-{report.version}").glob("*/"))
]


@pytest.mark.parametrize(("report", "folder"), OTHERS)
def test_the_log_of_another_release_is_read_as_in_its_report(report: kept.Report, folder: Path) -> None:
    state, result = read_log((folder / "server.log").read_bytes(), LOG), report.cases[folder.name]
    assert (state.value("version"), result.how) == (report.version, "started")
    assert (state.ready, state.failure.value) == (result.starts, None)
    for name in ("chunked_prefill", "prefix_caching"):
        assert state.value(name) == result.settings[name]
    assert state.value("mamba_cache_mode") in (result.settings["mamba_cache_mode"], None)
    assert list(state.stage_s) and state.value("kv_cache_tokens") > 0


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_flags_of_a_case_become_arguments() -> None:
    case = next(case for case in CASES if case.name == "hybrid-chunked-off")
    words = ("--model", "/m", "--enforce-eager", "--max-model-len", "4096", "--no-enable-chunked-prefill")
    assert case.argv("/m") == words


def test_a_stored_log_has_no_path_of_this_machine(tmp_path: Path) -> None:
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
