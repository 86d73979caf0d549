"""The table of the playbooks, templates and schemas that earlier versions' `init` copied into projects.

.venv/bin/python tools/earlier_copies.py writes src/sparkwright/project/earlier_copies.json from the history of the checkout.
Since 0.2.0 `init` copies none of them, so the table is complete and grows no more.
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
#: letters of a git blob's id that are kept
LETTERS = 16
MOST_VERSIONS = 2000


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
    shown = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=True, timeout=120).stdout
    found: dict[str, set[str]] = {}
    for line in shown.splitlines():
        about, _, name = line.partition("\t")
        blob = about.split()[3]
        if set(blob) != {"0"} and "/." not in name:  # all zeros: the file was removed
            found.setdefault(name, set()).add(blob[:LETTERS])
    if sum(map(len, found.values())) > MOST_VERSIONS:
        raise SystemExit(f"more than {MOST_VERSIONS} versions")
    return {name: sorted(found[name]) for name in sorted(found)}


def text(table: dict[str, list[str]]) -> str:
    """Return the table as JSON with a file a line."""
    rows = (f"{json.dumps(name)}: {json.dumps(ids)}" for name, ids in table.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(versions()))
