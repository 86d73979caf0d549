"""Generate the table of the playbooks, templates and schemas that the `init` of earlier versions copied into projects.

.venv/bin/python tools/earlier_copies.py writes src/sparkwright/project/earlier_copies.json from the history of the checkout.
Since 0.2.0 `init` copies none of them, so the table is complete and no longer grows.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

TOP = Path(__file__).parent.parent
TABLE = TOP / "src/sparkwright/project/earlier_copies.json"
FOLDERS = ("playbooks", "templates", "schemas")
#: the last commit whose `init` copied them
LAST = "e6c070e1"
#: number of leading characters of a git blob's id that the table has
ID_LENGTH = 16
MAX_VERSIONS = 2000


def versions(last: str = LAST) -> dict[str, list[str]]:
    """Return the ids of all versions of each file up to a commit."""
    words = [
        "git",
        "log",
        "--format=",
        "--raw",
        "--no-abbrev",
        "--no-renames",
        "--full-history",
        "-m",
        last,
        "--",
        *FOLDERS,
    ]
    log = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=True, timeout=120).stdout
    ids: dict[str, set[str]] = {}
    for line in log.splitlines():
        change, _, name = line.partition("\t")
        blob = change.split()[3]
        if set(blob) != {"0"} and "/." not in name:  # all zeros: the file was removed
            ids.setdefault(name, set()).add(blob[:ID_LENGTH])
    if sum(map(len, ids.values())) > MAX_VERSIONS:
        raise SystemExit(f"more than {MAX_VERSIONS} versions")
    return {name: sorted(ids[name]) for name in sorted(ids)}


def text(table: dict[str, list[str]]) -> str:
    """Return the table as JSON, with one line per file."""
    rows = (f"{json.dumps(name)}: {json.dumps(ids)}" for name, ids in table.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(versions()))
