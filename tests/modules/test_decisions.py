"""Decisions of modules from their findings, case by case (decisions.yml): no engine, no host."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.host.module import StateModule
from sparkwright.modules import registry
from sparkwright.protocol import signature

TABLE = yaml.safe_load(Path(__file__).with_name("decisions.yml").read_text())
CASES = [(module, case) for module, cases in TABLE["modules"].items() for case in cases]


def found_of(module: StateModule[Any, Any], given: Any) -> Any:
    """Return what the module's `read` would return: its own dataclass, a list of one, or plain values."""
    kind = typing.get_type_hints(module.read, localns={"Args": module.Args})["return"]
    if dataclasses.is_dataclass(kind):
        return kind(**given)
    (row,) = typing.get_args(kind)[:1] or (None,)
    return [row(**item) for item in given] if dataclasses.is_dataclass(row) else given


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}: {case['name']}" for name, case in CASES])
def test_a_case(name: str, case: dict[str, Any]) -> None:
    module = registry.load(name)()
    assert isinstance(module, StateModule)
    args = signature.build(module.Args, case["args"], module=name)
    found = found_of(module, case["found"])
    changes = [
        [difference.field, difference.before, difference.after] for difference in module.differences(args, found)
    ]
    said = module.describe(args, found)
    assert (changes, {key: said[key] for key in case.get("says", {})}) == (case["changes"], case.get("says", {}))
