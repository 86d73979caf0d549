"""Stored observations of a real group, from which docs/engine-agreement.md is made."""

import datetime
import json
from pathlib import Path

from tests.real_engine.engine import VERSION

#: a file a release
DATA = Path(__file__).parents[2] / "data" / "engine-agreement" / "group"


def save_reading(case: str, predicted: str, did: str) -> None:
    """One row, in place of that of another day."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{VERSION}.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows[case] = {"on": f"{datetime.date.today()}", "predicted": predicted, "did": did}
    path.write_text(json.dumps(rows, indent=1) + "\n")


def load_readings() -> list[tuple[str, str, str, str, str]]:
    """Release, case, what was predicted, what the group did, and when."""
    return [
        (path.stem, case, row["predicted"], row["did"], row["on"])
        for path in sorted(DATA.glob("*.json"))
        for case, row in json.loads(path.read_text()).items()
    ]
