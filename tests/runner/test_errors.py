"""After any failure of a task or a condition, rescue and always run, so that no swap stops halfway."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparkwright.host.module import Context, Module
from sparkwright.modules import registry
from sparkwright.protocol.events import decode, encode
from sparkwright.protocol.plan import Block, Step, Task
from sparkwright.protocol.result import Change, Result, arg
from tests.runner import test_play
from tests.runner.test_play import SayModule, Stage

stage = test_play.stage


def swap_block(stage: Stage, *steps: Step) -> Block:
    tasks = (stage.task("stop"), *steps, stage.task("never"))
    return stage.block(*tasks, rescue=(stage.task("put back"),), always=(stage.task("tidy"),))


BROKEN: dict[str, Callable[[Stage], Step]] = {
    "when of a nested block": lambda stage: stage.block(stage.task("x"), name="inner", when=("gone.x",)),
    "variables in the when of a nested block": lambda stage: stage.block(stage.task("x"), name="inner", when=("a",)),
    "when": lambda stage: stage.task("x", when=("nothing.here",)),
    "until": lambda stage: stage.task("stop", register="w", until=("w.nothing",), retries=3, delay_s=0),
    "changed_when": lambda stage: stage.task("stop", changed_when=("nothing",)),
    "failed_when": lambda stage: stage.task("stop", failed_when=("nothing",)),
    "failed task": lambda stage: stage.failing_task(),
    "undefined name": lambda stage: stage.task("x", args={"word": "{{ nothing.here }}"}, open=("word",)),
    "argument": lambda stage: stage.task("x", args={"word": "{{ a }}"}, open=("word",)),
    "division by zero": lambda stage: stage.task("x", when=("1 / 0",)),
    "long time": lambda stage: stage.task("x", args={"word": LONG_TEMPLATE}, open=("word",)),
    "much memory": lambda stage: stage.task("x", when=("'a' * 10 ** 9",)),
    "deep recursion": lambda stage: stage.task("x", args={"word": DEEP_TEMPLATE}, open=("word",)),
}
LONG_TEMPLATE = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
DEEP_TEMPLATE = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"


@pytest.mark.parametrize("place", BROKEN)
def test_failure_or_expression_error_rescues_the_block(stage: Stage, place: str) -> None:
    variables = {"a": "{{ b }}", "b": "{{ a }}"}
    recap = stage.run(swap_block(stage, BROKEN[place](stage)), stage.task("next"), open_vars=variables)
    assert [word for word in stage.written() if word != "stop"] == ["put back", "tidy", "next"]
    assert (recap["failed"], recap["rescued"], recap["exit"]) == (0, 1, 0)


def test_error_in_the_condition_of_a_block_is_reported_and_rescued(stage: Stage) -> None:
    stage.run(replace(swap_block(stage), when=("gone.changed",), where="play.yml:7"))
    assert stage.written() == ["put back", "tidy"]
    finished = stage.finished("swap")
    assert (finished["status"], finished["where"]) == ("failed", "play.yml:7")
    assert "'gone' is undefined" in finished["msg"]


def test_check_mode_skips_a_block_that_depends_on_a_change(stage: Stage) -> None:
    block = stage.block(stage.task("x"), when=("made.word == 'x'",))
    recap = stage.run(stage.task("make", args={"changed": True}, register="made"), block, check=True)
    assert (recap["failed"], recap["skipped"]) == (0, 1)


def test_cyclic_variables_are_named(stage: Stage) -> None:
    recap = stage.run(stage.task("x", when=("a",)), open_vars={"a": "{{ b }}", "b": "{{ c }}", "c": "{{ a }}"})
    assert "variables refer to each other: a -> b -> c -> a" in recap["msg"]


def test_shared_variables_are_rendered_once(stage: Stage) -> None:
    ladder = {f"v{n}": f"{{{{ v{n + 1} }}}}{{{{ v{n + 1} }}}}" for n in range(60)}
    recap = stage.run(stage.task("x", when=("v0",)), open_vars={**ladder, "v60": ""})
    assert recap["failed"] == 0


def test_change_counts_if_changed_when_fails(stage: Stage) -> None:
    """A later refusal does not exit with 5, which would mean that nothing was changed."""
    fields = {"changed_when": ("nothing",), "ignore_errors": True, "register": "act"}
    refused = stage.task("later", args={"refuse": "no"})
    assert stage.run(stage.task("act", args={"changed": True}, **fields), refused)["exit"] == 1
    assert stage.finished("act")["registered"]["word"] == "act"


def test_failed_attempt_keeps_its_message_and_is_retried(stage: Stage) -> None:
    recap = stage.run(stage.failing_task("w", register="w", until=("w.code == 0",), retries=2, delay_s=0))
    assert recap["msg"] == "w"
    assert stage.finished("w")["data"]["attempts"] == 3


def cyclic_value() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class MisbehavingModule(Module["MisbehavingModule.Args"]):
    @dataclass(frozen=True)
    class Args:
        end: str = arg("a key of INVALID_ENDS")

    def run(self, args: Args, context: Context) -> Result:
        return INVALID_ENDS[args.end]()  # type: ignore[no-any-return]


INVALID_ENDS: dict[str, Callable[[], Any]] = {
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "out of memory": lambda: (_ for _ in ()).throw(MemoryError()),
    "recursion": lambda: INVALID_ENDS["recursion"](),
    "no result": lambda: None,
    "dict": lambda: {"msg": "hello"},
    "cyclic data": lambda: Result(data=cyclic_value()),
    "keys that JSON lacks": lambda: Result(data={("a", 1): 2}),  # type: ignore[dict-item]
    "message of another type": lambda: Result(msg=5),  # type: ignore[arg-type]
    "diff of another type": lambda: Result(diff=[("a", "b")]),  # type: ignore[list-item]
    "cyclic diff": lambda: Result(diff=[Change("a", None, cyclic_value())]),
}


@pytest.mark.parametrize("end", INVALID_ENDS)
def test_misbehaving_module_is_a_failed_task(stage: Stage, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    modules: dict[str, type[Module[Any]]] = {"say": SayModule, "odd": MisbehavingModule}
    monkeypatch.setattr(registry, "load", modules.__getitem__)
    recap = stage.run(swap_block(stage, Task(id="odd", name="odd", module="odd", args={"end": end})))
    assert stage.written() == ["stop", "put back", "tidy"]
    assert (recap["rescued"], recap["exit"]) == (1, 0)
    assert stage.finished("odd")["msg"].startswith("odd")


def test_invalid_unicode_is_encoded(stage: Stage) -> None:
    stage.run(stage.task("a\udcff"))
    assert [decode(encode(event))["event"] for event in stage.events] == ["task_started", "task_finished"]
