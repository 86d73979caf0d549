"""A plan survives its way to the host."""

from __future__ import annotations

import json

import pytest

from sparkwright.protocol.plan import Block, Plan, Task, tasks_of


def test_a_plan_is_the_same_after_its_way_through_json() -> None:
    swap = Block(
        id="2", name="swap", tasks=(Task(id="2.1", name="stop", module="stop_and_keep", notify=("tell",)),), when=("x",)
    )
    plan = Plan(run_id="r", host="spark1", play="Deploy", steps=(Task(id="1", name="a", module="facts"), swap))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 99"):
        Plan.from_json({"schema": 99})


def test_tasks_are_found_in_reading_order() -> None:
    one, two, three = (Task(id=str(n), name=str(n), module="facts") for n in range(3))
    block = Block(id="b", name="b", tasks=(one,), rescue=(two,), always=(three,))
    assert [task.id for task in tasks_of((block,))] == ["0", "1", "2"]
