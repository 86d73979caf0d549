"""Arguments of modules, and the decisions of modules in decisions.yml."""

import dataclasses
import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from sparkwright.errors import Refused
from sparkwright.host.module import StateModule
from sparkwright.modules import registry
from sparkwright.protocol import signature
from sparkwright.protocol.result import arg
from sparkwright.protocol.signature import build_args, validate_arguments


@dataclass(frozen=True)
class Args:
    path: str = arg("where")
    mode: str | None = arg("octal", default=None)
    words: list[str] = arg("words", default_factory=list)
    limits: dict[str, float] = arg("limits", default_factory=dict)
    state: Literal["present", "absent"] = arg("state", default="present")
    wait_s: float = arg("seconds", default=1.0)
    deep: bool = arg("deep", default=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pth": "/tmp"}, "no argument `pth`.*Did you mean `path`"),
        ({}, r"file needs the argument `path` \(where\)"),
        ({"path": "p", "words": ["a", {"b": 1}]}, r"file.words\[1\] must be a string"),
        ({"path": "p", "state": "gone"}, "file.state must be"),
        ({"path": "p", "deep": "yes"}, "file.deep must be"),
        ({"path": "p", "wait_s": "soon"}, "file.wait_s must be"),
        ({"path": "p", "mode": ["0644"]}, "file.mode must be"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        build_args(Args, arguments, module="file")


def test_numbers_and_texts_are_converted() -> None:
    args = build_args(Args, {"path": 7, "wait_s": "2.5", "limits": {"cpu": 2}}, module="file")
    assert (args.path, args.wait_s, args.limits) == ("7", 2.5, {"cpu": 2.0})


@pytest.mark.parametrize("value", [-1, -0.5, "-1", "nan", "inf", float("inf")])
def test_negative_or_infinite_number_is_refused(value: object) -> None:
    with pytest.raises(Refused, match="file.wait_s must be at least 0, got"):
        build_args(Args, {"path": "p", "wait_s": value}, module="file")
    with pytest.raises(Refused, match=r"file.limits.cpu must be at least 0"):
        build_args(Args, {"path": "p", "limits": {"cpu": value}}, module="file")


def test_unresolved_argument_is_not_checked() -> None:
    def check(**arguments: Any) -> dict[str, Any]:
        args_signature, unresolved = signature.from_args_type(Args), frozenset({"path"})
        return validate_arguments(args_signature, arguments, module="file", unresolved=unresolved)

    assert check(path="{{ facts.home }}", wait_s=2) == {"wait_s": 2.0}
    with pytest.raises(Refused, match="file.wait_s must be a number"):
        check(path="{{ facts.home }}", wait_s="soon")


@pytest.mark.parametrize("name", registry.NAMES)
def test_signature_survives_json(name: str) -> None:
    args_signature = signature.from_args_type(registry.load(name).Args)
    assert signature.from_json(json.loads(json.dumps(signature.to_json(args_signature)))) == args_signature


TABLE = yaml.safe_load(Path(__file__).with_name("decisions.yml").read_text())
CASES = [(module, case) for module, cases in TABLE["modules"].items() for case in cases]


def build_field(field_type: Any, value: Any) -> Any:
    return field_type.from_json(value) if hasattr(field_type, "from_json") and isinstance(value, dict) else value


def build_read_value(module: StateModule[Any, Any], value: Any) -> Any:
    """Return the value as the type that the module's `read` returns."""
    return_type = typing.get_type_hints(module.read, localns={"Args": module.Args})["return"]
    if isinstance(return_type, type) and dataclasses.is_dataclass(return_type):
        types = typing.get_type_hints(return_type)
        return return_type(**{name: build_field(types[name], value) for name, value in value.items()})
    (item_type,) = typing.get_args(return_type)[:1] or (None,)
    if isinstance(item_type, type) and dataclasses.is_dataclass(item_type):
        return [item_type(**item) for item in value]
    return value


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}: {case['name']}" for name, case in CASES])
def test_decision_of_a_module(name: str, case: dict[str, Any]) -> None:
    module = registry.load(name)()
    assert isinstance(module, StateModule)
    args = signature.build_args(module.Args, case["args"], module=name)
    read_value = build_read_value(module, case["found"])
    changes = [[change.field, change.before, change.after] for change in module.differences(args, read_value)]
    result = module.describe(args, read_value)
    assert (changes, {key: result[key] for key in case.get("says", {})}) == (case["changes"], case.get("says", {}))
