"""Module that summarizes checks in a table of verdicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sparkwright.errors import Exit
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

RowVerdict = Literal["proved", "failed", "unknown", "inconclusive", "differs"]
VERDICT_ORDER: tuple[RowVerdict, ...] = ("failed", "inconclusive", "differs", "unknown", "proved")
#: row verdict for each verdict that other modules return; any other verdict counts as unknown
ROW_VERDICTS: dict[str, RowVerdict] = {
    "disproved": "failed",
    "not found": "unknown",
    "proved": "proved",
    "inconclusive": "inconclusive",
    "differs": "differs",
}
#: verdict of a check that the recipe does not request; it gets no row
NOT_REQUESTED = "not asked for"
UNKNOWN_VERDICTS = ("unknown", "off", "not compared")
INCONCLUSIVE_VERDICTS = ("inconclusive", "host degraded")


@dataclass(frozen=True, slots=True)
class Row:
    """A check in the table."""

    check: str
    verdict: RowVerdict
    evidence: str
    figure: str = ""
    fix: str = ""


class Verdict(Module["Verdict.Args"]):
    """Summarize earlier checks in a table of check, verdict, evidence and figure.

    A check that was skipped because an earlier one failed is unknown. The task fails if a check failed. If none failed and
    one is inconclusive, the run exits with code 4. If the server works but differs from the recipe (`differs`), the run
    reports the differences and exits with code 2.

    Returns: rows (check; verdict: proved, failed, unknown, inconclusive or differs; evidence; figure; fix).
    """

    @dataclass(frozen=True)
    class Args:
        checks: dict[str, Any] = arg("registered results, by the name of the check")
        only_if: dict[str, Any] = arg(
            "a registered result; if it failed, the verdict is inconclusive", default_factory=dict
        )

    def run(self, args: Args, context: Context) -> Result:
        rows = [row for name, result in args.checks.items() for row in build_rows(name, result)]
        data = {"rows": [asdict(row) for row in rows]}
        if args.only_if.get("failed"):
            msg, fix = args.only_if["msg"], args.only_if["fix"]
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=msg, fix=fix, data=data)
        verdicts = {row.verdict for row in rows}
        message = ", ".join(
            f"{sum(row.verdict == verdict for row in rows)} {verdict}"
            for verdict in VERDICT_ORDER
            if verdict in verdicts
        )
        first_problem = next((row for verdict in VERDICT_ORDER[:2] for row in rows if row.verdict == verdict), None)
        if first_problem is None:
            return _difference_result(rows, message, data)
        code = None if first_problem.verdict == "failed" else Exit.INCONCLUSIVE
        msg = f"{first_problem.check}: {first_problem.evidence} ({message})."
        return Result(failed=True, exit=code, msg=msg, fix=_end_with_period(first_problem.fix), data=data)


def _difference_result(rows: list[Row], message: str, data: dict[str, Any]) -> Result:
    """Return the result of a server that passed all checks, with its differences from the recipe, if any."""
    differing_rows = [row for row in rows if row.verdict == "differs"]
    if not differing_rows:
        return Result(msg=message, data=data)
    names = ", ".join(row.check for row in differing_rows)
    fix = next((_end_with_period(row.fix) for row in differing_rows if row.fix), "")
    msg = f"the server works but does not match the recipe: {names} ({message})."
    return Result(msg=msg, fix=fix, exit=Exit.CHANGES, data=data)


def _end_with_period(text: str) -> str:
    return f"{text.rstrip('.')}." if text else ""


def build_rows(name: str, result: dict[str, Any]) -> list[Row]:
    """Return the rows for one registered result; none if the check was not requested. Pure."""
    if result.get("skipped"):
        return [Row(name, "unknown", "not checked: an earlier check failed")]
    if result.get("verdict") == NOT_REQUESTED:
        return []
    if checks := result.get("checks"):
        return [
            Row(
                check["check"],
                ROW_VERDICTS.get(check["verdict"], "unknown"),
                check["evidence"],
                fix=check.get("fix", ""),
            )
            for check in checks
            if not (check.get("variant") and check["verdict"] == "proved")  # its probe's row covers it
        ]
    message = str(result.get("msg", "")).rstrip(".")
    return [Row(name, _row_verdict(result), message, _format_figure(result), result.get("fix", ""))]


def _row_verdict(result: dict[str, Any]) -> RowVerdict:
    if result.get("exit") == Exit.INCONCLUSIVE or result.get("verdict") in INCONCLUSIVE_VERDICTS:
        return "inconclusive"
    if result.get("failed"):
        return "failed"
    return "unknown" if result.get("verdict") in UNKNOWN_VERDICTS else "proved"


def _format_figure(result: dict[str, Any]) -> str:
    """Return the decode rate with its baseline, or the prefix cache's hit rate; empty if neither was measured."""
    rate, baseline = result.get("tok_per_s"), result.get("baseline")
    if rate is None:
        share = result.get("hit_share")
        return f"{share:.0%} cached" if share is not None else ""
    comparison = f" / {baseline:.1f} ({rate / baseline - 1:+.0%})" if baseline else ""
    return f"{rate:.1f}{comparison} tok/s"
