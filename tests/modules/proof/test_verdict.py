"""The table of all checks, and the exit code."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.console.events.tables import TABLES, format_table
from sparkwright.errors import Exit
from sparkwright.modules.proof.verdict import Verdict
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext

GOOD = Result(msg="fine", data={"tok_per_s": 47.2, "baseline": 47.0}).registered()
BAD = Result(failed=True, msg="slow.", fix="Do this.").registered()
DOUBT = Result(failed=True, exit=Exit.INCONCLUSIVE, msg="others").registered()
SKIPPED = Result(skipped=True).registered()
LOG = Result(data={"checks": [{"check": "graphs", "verdict": "not found", "evidence": "no line"}]}).registered()


def run_verdict(tmp_path: Path, **checks: Any) -> Result:
    return Verdict().run(Verdict.Args(checks=checks), RecordingContext(tmp_path))


@pytest.mark.parametrize(
    ("checks", "failed", "exit_code"),
    [
        ({"a": GOOD}, False, None),
        ({"a": GOOD, "b": LOG}, False, None),
        ({"a": GOOD, "b": DOUBT}, True, Exit.INCONCLUSIVE),
        ({"a": DOUBT, "b": BAD}, True, None),
        ({"a": BAD, "b": SKIPPED}, True, None),
    ],
)
def test_failure_outweighs_doubt(tmp_path: Path, checks: dict[str, Any], failed: bool, exit_code: Exit | None) -> None:
    result = run_verdict(tmp_path, **checks)
    assert (result.failed, result.exit) == (failed, exit_code)


def test_rows_include_unchecked_and_unknown(tmp_path: Path) -> None:
    rows = run_verdict(tmp_path, a=BAD, b=SKIPPED, c=LOG, d=GOOD).data["rows"]
    verdicts = [(row["check"], row["verdict"]) for row in rows]
    assert verdicts == [("a", "failed"), ("b", "unknown"), ("graphs", "unknown"), ("d", "proved")]
    assert rows[3]["figure"] == "47.2 / 47.0 (+0%) tok/s"


def test_table_fits_the_terminal(tmp_path: Path) -> None:
    long = Result(failed=True, msg="word " * 60, fix="mend it").registered()
    rows = run_verdict(tmp_path, throughput=long, health=GOOD).data["rows"]
    lines = [text for _, text in format_table(rows, TABLES["verdict"][1], 80)]
    assert max(map(len, lines)) <= 80
    assert any("→ mend it" in text for text in lines)


def test_check_that_was_not_requested_is_left_out(tmp_path: Path) -> None:
    unrequested = Result(msg="not checked: the recipe requests no GPU", data={"verdict": "not asked for"}).registered()
    result = run_verdict(tmp_path, a=GOOD, GPU=unrequested)
    assert ([row["check"] for row in result.data["rows"]], result.msg) == (["a"], "1 proved")
