"""Stored observations of a real group, from which docs/engine-agreement.md is made."""

import datetime
import json
from pathlib import Path

from tests.real_engine.engine import VERSION

#: with a file for each release
DATA = Path(__file__).parents[2] / "data" / "engine-agreement" / "group"


def save_reading(case: str, predicted: str, did: str) -> None:
    """Store the reading of a case, which replaces an earlier one."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{VERSION}.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows[case] = {"on": f"{datetime.date.today()}", "predicted": predicted, "did": did}
    path.write_text(json.dumps(rows, indent=1) + "\n")


def load_readings() -> list[tuple[str, str, str, str, str]]:
    """Return rows of release, case, prediction, outcome and date."""
    return [
        (path.stem, case, row["predicted"], row["did"], row["on"])
        for path in sorted(DATA.glob("*.json"))
        for case, row in json.loads(path.read_text()).items()
    ]
