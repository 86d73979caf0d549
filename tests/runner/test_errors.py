"""After any failure of a task or a condition, rescue and always run: a replacement never stops halfway."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sparkwright.host.module import Context, Module
from sparkwright.modules import registry
from sparkwright.modules.system.command import Fail
from sparkwright.protocol.plan import Block, Task
from sparkwright.protocol.result import Change, Result, arg
from tests.runner import test_play
from tests.runner.test_play import SayModule, Stage

stage = test_play.stage


def swap_block(stage: Stage, *inside: Any) -> Block:
    return Block(
        id="swap",
        name="swap",
        tasks=(stage.task("stop"), *inside, stage.task("never")),
        rescue=(stage.task("put back"),),
        always=(stage.task("tidy"),),
    )


BROKEN: dict[str, Callable[[Stage], Any]] = {
    "a nested block's when": lambda stage: Block(id="b", name="inner", tasks=(stage.task("x"),), when=("gone.x",)),
    "variables in a nested block's when": lambda stage: Block(id="b", name="b", tasks=(stage.task("x"),), when=("a",)),
    "when": lambda stage: stage.task("x", when=("nothing.here",)),
    "until": lambda stage: stage.task("stop", register="w", until=("w.nothing",), retries=3, delay_s=0),
    "changed_when": lambda stage: stage.task("stop", changed_when=("nothing",)),
    "failed_when": lambda stage: stage.task("stop", failed_when=("nothing",)),
    "an argument": lambda stage: stage.task("x", args={"word": "{{ a }}"}, open=("word",)),
    "a filter that fails": lambda stage: stage.task("x", when=("1 / 0",)),
    "a long time": lambda stage: stage.task("x", args={"word": LONG_TEMPLATE}, open=("word",)),
    "much memory": lambda stage: stage.task("x", when=("'a' * 10 ** 9",)),
    "deep recursion": lambda stage: stage.task("x", args={"word": DEEP_TEMPLATE}, open=("word",)),
}
LONG_TEMPLATE = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
DEEP_TEMPLATE = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"


@pytest.mark.parametrize("what", BROKEN)
def test_expression_error_fails_the_task_and_rescues_the_block(stage: Stage, what: str) -> None:
    recap = stage.run(
        swap_block(stage, BROKEN[what](stage)), stage.task("next"), open_vars={"a": "{{ b }}", "b": "{{ a }}"}
    )
    assert [item for item in stage.said() if item != "stop"] == ["put back", "tidy", "next"]
    assert (recap["failed"], recap["rescued"], recap["exit"]) == (0, 1, 0)


def test_error_in_the_condition_of_a_block_is_reported_and_rescued(stage: Stage) -> None:
    inner = Block(
        id="b7",
        name="swap the server",
        tasks=(stage.task("never"),),
        rescue=(stage.task("inner rescue"),),
        always=(stage.task("inner always"),),
        when=("gone.changed",),
        where="play.yml:7",
    )
    stage.run(inner)
    assert stage.said() == ["inner rescue", "inner always"]
    message = stage.finished("swap the server")
    assert (message["status"], message["where"]) == ("failed", "play.yml:7")
    assert "'gone' is undefined" in message["msg"]


def test_check_mode_skips_a_block_that_depends_on_a_change(stage: Stage) -> None:
    block = Block(id="b", name="b", tasks=(stage.task("x"),), when=("made.word == 'x'",))
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
    """Something was touched: a later refusal doesn't end the run with "nothing was touched"."""
    broken_task = stage.task(
        "act", args={"changed": True}, changed_when=("nothing",), ignore_errors=True, register="act"
    )
    refused = stage.task("later", args={"refuse": "no"})
    assert stage.run(broken_task, refused)["exit"] == 1
    assert stage.finished("act")["registered"]["word"] == "act"


def test_failed_attempt_keeps_its_message_and_is_retried(stage: Stage) -> None:
    waits = stage.task("w", module="fail", register="w", until=("w.code == 0",), retries=2, delay_s=0)
    recap = stage.run(waits)
    assert recap["msg"] == "w"
    assert stage.finished("w")["data"]["attempts"] == 3


def cyclic_value() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class MisbehavingModule(Module["MisbehavingModule.Args"]):
    """A module that ends in ways in which none should."""

    @dataclass(frozen=True)
    class Args:
        how: str = arg("how")

    def run(self, args: Args, context: Context) -> Result:
        return MISBEHAVIOURS[args.how]()  # type: ignore[no-any-return]


MISBEHAVIOURS: dict[str, Callable[[], Any]] = {
    "exits": lambda: sys.exit(3),
    "is interrupted": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "runs out of memory": lambda: (_ for _ in ()).throw(MemoryError()),
    "recurses": lambda: MISBEHAVIOURS["recurses"](),
    "returns nothing": lambda: None,
    "returns a dict": lambda: {"msg": "hello"},
    "returns a circle": lambda: Result(data=cyclic_value()),
    "returns keys JSON lacks": lambda: Result(data={("a", 1): 2}),
    "returns a message of another type": lambda: Result(msg=5),  # type: ignore[arg-type]
    "returns a diff of another type": lambda: Result(diff=[("a", "b")]),  # type: ignore[list-item]
    "returns a circle in its diff": lambda: Result(diff=[Change("a", None, cyclic_value())]),
}


@pytest.mark.parametrize("how", MISBEHAVIOURS)
def test_misbehaving_module_is_a_failed_task(stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    kinds: dict[str, type[Module[Any]]] = {"say": SayModule, "fail": Fail, "odd": MisbehavingModule}
    monkeypatch.setattr(registry, "load", kinds.__getitem__)
    recap = stage.run(swap_block(stage, Task(id="odd", name="odd", module="odd", args={"how": how})))
    assert stage.said() == ["stop", "put back", "tidy"]
    assert (recap["rescued"], recap["exit"]) == (1, 0)
    assert stage.finished("odd")["msg"].startswith("odd")


def test_invalid_unicode_is_encoded(stage: Stage) -> None:
    stage.run(stage.task("a\udcff"))
    from sparkwright.protocol.events import decode, encode

    assert [decode(encode(event))["event"] for event in stage.events] == ["task_started", "task_finished"]
