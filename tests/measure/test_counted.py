"""Comparison of the token counts of server and client, and detection of other clients."""

import ast
from pathlib import Path

import pytest

import sparkwright
from sparkwright.measure.server_counters import has_count_mismatch, has_foreign_tokens


@pytest.mark.parametrize(
    ("served", "streamed", "capped", "has_others", "is_wrong"),
    [
        (100, 100, 0, False, False),
        (101, 100, 0, False, False),
        (110, 100, 0, True, True),
        (108, 100, 1, False, False),
        (109, 100, 1, True, True),
        (100, 110, 0, False, True),
        (100, 110, 2, False, True),
        (0, 0, 0, False, False),
    ],
)
def test_capped_streams_excuse_a_few_extra_tokens_but_no_missing_ones(
    served: float, streamed: int, capped: int, has_others: bool, is_wrong: bool
) -> None:
    assert has_foreign_tokens(served, streamed, capped) is has_others
    assert has_count_mismatch(served, streamed, capped) is is_wrong


def test_diagnosis_imports_no_playbook_module() -> None:
    folder = Path(sparkwright.__file__).parent / "doctor/diagnosis"
    imports = [
        node
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert not any(name.startswith("sparkwright.modules.proof.smoke_test") for name in names)
    assert "sparkwright.modules.proof" not in {node.module for node in imports}
    assert "sparkwright.measure.http_probe" in names
