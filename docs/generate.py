"""Writes what is generated here: docs/modules/*.md, docs/schemas/*.json and the tables of docs/files/*.md.

.venv/bin/python docs/generate.py         (`make docs`; a test says when a page is stale)
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from sparkwright import docs
from sparkwright.cli.linting import rule_text
from sparkwright.engine.rules import RULES
from sparkwright.inventory.models import GroupFile, HostFile, SecretSource
from sparkwright.lockfile import FileEntry, ImageEntry, LockFile, ManifestEntry, ModelEntry
from sparkwright.modules import registry
from sparkwright.playbook.models import BlockFile, IncludeFile, PlayFile, TaskFile
from sparkwright.recipe.models import Container, Expect, Model, RecipeFile
from sparkwright.userfiles import schemas

HERE = Path(__file__).parent
MODELS = (
    *(HostFile, GroupFile, SecretSource),
    *(RecipeFile, Model, Container, Expect),
    *(PlayFile, TaskFile, BlockFile, IncludeFile),
    *(LockFile, ImageEntry, ManifestEntry, ModelEntry, FileEntry),
)
TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.S)


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    tables = {model.__name__: schemas.table(model) for model in MODELS}
    found = {HERE / "modules" / f"{name}.md": docs.module(name) for name in registry.NAMES}
    for kind in schemas.KINDS:
        found[HERE / "schemas" / f"{kind}.json"] = json.dumps(schemas.schema(kind), indent=1) + "\n"
    for page in sorted((HERE / "files").glob("*.md")):
        text = page.read_text()
        found[page] = TABLE.sub(lambda m: f"<!-- table {m[1]} -->\n{tables[m[1]]}\n<!-- end -->", text)
    index = [
        f"# Modules\n\nMade from their docstrings; `invoke docs.module NAME` shows the same.\n\n```\n{docs.index()}\n```\n"
    ]
    return {**found, HERE / "modules" / "README.md": "".join(index), HERE / "rules.md": _rules()}


def _rules() -> str:
    parts = [
        "# Rules\n\nWhat `invoke lint` looks for, and a deploy before it touches a host. `invoke explain RULE` shows the same.\n"
    ]
    for name in sorted(RULES):
        parts.append(f"\n## {name}\n\n```\n{rule_text(RULES[name])}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
