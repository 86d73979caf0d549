"""The imports of the benchmarks, which no other test runs."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_imported_modules_exist(path: Path) -> None:
    imports = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    modules = {node.module for node in imports if node.module}
    own = [module for module in modules if module.startswith(("sparkwright.", "tests.", "benchmarks."))]
    assert [module for module in own if find_spec(module) is None] == []
