"""Imports inside functions are refused unless a group in tools/lazy_imports.py allows them."""

from pathlib import Path

import pytest
from tools.lazy_imports import Group

from tools import lazy_imports

GROUPS = (Group("docker's SDK (60 ms)", ("host/*",), ("docker",)),)
LAZY_SOURCE = "def f():\n    import docker.errors\n    {}\n"


def list_findings(top: Path, **files: str) -> list[str]:
    for name, text in files.items():
        path = top / "src/sparkwright" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(lazy_imports.findings(top, GROUPS))


def test_import_of_a_group_is_allowed(tmp_path: Path) -> None:
    assert list_findings(tmp_path, host__a=LAZY_SOURCE.format("pass"), host__b="import json\n") == []


@pytest.mark.parametrize("statement", ["import json", "from json import loads", "def g():\n        import json"])
def test_other_import_is_refused_with_its_line(tmp_path: Path, statement: str) -> None:
    (finding,) = list_findings(tmp_path, host__a=LAZY_SOURCE.format(statement))
    line = 4 if "def" in statement else 3
    assert finding.startswith(f"src/sparkwright/host/a.py:{line}: json"), finding


def test_group_applies_only_to_its_files(tmp_path: Path) -> None:
    findings = list_findings(tmp_path, cli__a=LAZY_SOURCE.format("pass"))
    assert [item.partition(": ")[0] for item in findings] == ["src/sparkwright/cli/a.py:2", "tools/lazy_imports.py"]


def test_unused_group_is_refused(tmp_path: Path) -> None:
    assert list_findings(tmp_path, host__a="import json\n") == [
        "tools/lazy_imports.py: no import belongs to the group: docker's SDK (60 ms)"
    ]


def test_source_tree_passes() -> None:
    assert list(lazy_imports.findings(lazy_imports.TOP)) == []
