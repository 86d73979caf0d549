"""Each expectation about a log is proved, disproved or not found."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log import text as log_text
from sparkwright.engines.log.reader import LogReader, read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.errors import Refused
from sparkwright.modules.proof import engine_reports
from sparkwright.modules.proof.engine_reports import PatternSearch, VerifyLogs

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32.0"
HYBRID_ON = (DATA / "hybrid-chunked-on" / "server.log").read_text()
HYBRID_OFF = (DATA / "hybrid-chunked-off-prefix-off" / "server.log").read_text()
NCCL_IB = "spark1:77:77 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE\n"
NCCL_SOCKET = "spark1:77:77 [0] NCCL INFO NET/Socket : Using [0]enp1s0:192.0.2.7\n"


def evaluate_log(text: str, **args: Any) -> list[str]:
    arguments = VerifyLogs.Args(name="x", **args)
    search = PatternSearch([*arguments.expect_log, *arguments.forbid_log])
    for line in log_text.iter_lines(text):
        search.feed(line)
    return [check.verdict for check in engine_reports.evaluate_checks(arguments, read_log(text, LOG), search.matches)]


@pytest.mark.parametrize(
    ("log", "expected", "verdict"),
    [
        (HYBRID_ON, "enabled", "proved"),
        (HYBRID_ON, "disabled", "disproved"),
        (HYBRID_OFF, "disabled", "proved"),
        (HYBRID_OFF, "enabled", "disproved"),
        ("INFO: Started server process [1]\n", "enabled", "not found"),
        ("INFO: Started server process [1]\n", "disabled", "not found"),
    ],
)
def test_chunked_prefill_is_read_from_the_settings_in_the_log(log: str, expected: str, verdict: str) -> None:
    assert evaluate_log(log, chunked_prefill=expected) == [verdict]


def test_nothing_expected_means_no_checks() -> None:
    assert evaluate_log("") == []


@pytest.mark.parametrize(
    ("log", "verdicts"),
    [
        (HYBRID_ON + NCCL_IB, ["proved", "proved"]),
        (HYBRID_ON + NCCL_SOCKET, ["not found", "disproved"]),
        (HYBRID_ON, ["not found", "proved"]),
        ("", ["not found", "not found"]),  # an empty log does not prove that a line was never written
    ],
)
def test_patterns_are_expected_and_forbidden(log: str, verdicts: list[str]) -> None:
    assert evaluate_log(log, expect_log=[r"NET/IB\b.*RoCE"], forbid_log=["NET/Socket"]) == verdicts


def test_missing_evidence_fails_unless_the_recipe_accepts_it() -> None:
    assert "not found" in engine_reports.failing_verdicts("fail")
    assert engine_reports.failing_verdicts("pass") == ("disproved",)


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(Refused, match="is not a regular expression"):
        PatternSearch(["NET/(IB"])


def test_lines_of_an_earlier_start_do_not_count() -> None:
    reader, search = LogReader(LOG), PatternSearch(["NET/IB"])
    for line in log_text.iter_lines(HYBRID_ON + NCCL_IB + HYBRID_OFF):
        if reader.feed(line):
            search.reset()
        search.feed(line)
    assert search.matches == {}


def test_reduced_context_in_the_log_is_disproved() -> None:
    llama, folder = engine.get_engine("llama_cpp"), DATA.parent / "llama-b10068"
    capped, ready = (read_log((folder / name / "server.log").read_bytes(), llama.log) for name in ("capped", "ready"))
    (check,) = engine_reports.find_unmet_requests(capped, llama)
    assert (check.check, check.verdict) == ("serves what was requested", "disproved")
    assert check.evidence.endswith("slot context (25088) exceeds the training context of the model (8192) - capping")
    assert engine_reports.find_unmet_requests(ready, llama) == []
