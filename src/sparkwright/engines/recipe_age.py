"""The age of a recipe: models and engines move on, but a recipe keeps the best settings of its day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from sparkwright.engines.advice import Explained
from sparkwright.engines.findings import Finding, Rules, Way

#: age in days from which a recipe is old: six months
OLD_DAYS = 183
FLAG = "date"


@dataclass(frozen=True)
class Case:
    """The input of the rule."""

    written: str = ""  # the recipe's `date`, YYYY-MM-DD; empty for none
    today: str = ""  # YYYY-MM-DD


RULES: Rules[Case, Case] = Rules()


def months(written: str, today: str) -> int | None:
    """Return the age of a recipe in whole months, if it is old.

    Args:
        written: The recipe's `date`, YYYY-MM-DD; empty for none.
        today: YYYY-MM-DD.

    Returns:
        None for a recipe that is not old or has no date.
    """
    if not written:
        return None
    days = (date.fromisoformat(today) - date.fromisoformat(written)).days
    return days * 12 // 365 if days > OLD_DAYS else None


def remark(written: str, today: str) -> str:
    """Return a clause about a recipe's date, as "of 2026-03-05, older than six months"; empty for a recipe without one."""
    if not written:
        return ""
    return f"of {written}" + (", older than six months" if months(written, today) is not None else "")


@RULES.rule(
    "old-recipe",
    sources=("the recipe's own `date`: the day of the newest source of its settings and figures",),
    example=Case("2026-03-05", "2026-11-26"),
)
def old_recipe(case: Case) -> Iterator[Finding]:
    """A recipe whose settings and figures are older than six months.
    It serves as before. Newer models of its size may answer better, and a newer engine may have faster kernels, other defaults or
    drafted tokens for this one. `date` is the day of the newest source of a recipe's settings and figures; whoever measures or
    compares them anew sets it to that day.
    """
    age = months(case.written, case.today)
    if age is not None:
        ways = (Way("compare it with newer ones (`sparkwright recommend`), or set `date` once it was measured again"),)
        yield Finding("info", f"its settings and figures are {age} months old (`date`).", ways, "", FLAG)


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    rule = RULES.get(name)
    if rule is None:
        return None
    finding = next(iter(rule.findings(rule.example)))
    return Explained("", rule.name, rule.title, rule.reason, rule.sources, {}, "", None, finding)
