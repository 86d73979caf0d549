"""A plan survives serialization on its way to the host."""

import json

import pytest

from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Block, Plan, Task, tasks_of


def test_plan_survives_json() -> None:
    swap = Block(
        id="2", name="swap", tasks=(Task(id="2.1", name="stop", module="stop_and_keep", notify=("tell",)),), when=("x",)
    )
    plan = Plan(run_id="r", host="spark1", play="Deploy", steps=(Task(id="1", name="a", module="facts"), swap))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_plan_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 99"):
        Plan.from_json({"schema": 99})


def test_tasks_are_listed_in_reading_order() -> None:
    value, two, three = (Task(id=str(n), name=str(n), module="facts") for n in range(3))
    block = Block(id="b", name="b", tasks=(value,), rescue=(two,), always=(three,))
    assert [task.id for task in tasks_of((block,))] == ["0", "1", "2"]


def test_plan_without_a_cluster_has_no_cluster_key() -> None:
    assert "cluster" not in Plan(run_id="r", host="spark1", play="Deploy", steps=()).to_json()


@pytest.mark.parametrize("address", ["192.168.100.10", "127.0.0.1", "::1", "fd00::a:1"])
def test_cluster_of_a_plan_survives_json(address: str) -> None:
    pair = Cluster("pair", 1, ("spark1", "spark2"), address, 29499)
    plan = Plan(run_id="r", host="spark2", play="Deploy", steps=(), cluster=pair)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"rank": 2}, "no member of its rank"),
        ({"rank": 0}, "host does not have the plan's rank"),
        ({"rank": True}, "rank"),
        ({"members": ["spark2"]}, "members are not 2 to 64"),
        ({"members": ["spark2", "spark2"]}, "members are not 2 to 64"),
        ({"members": ["../x", "spark2"]}, "members"),
        ({"address": "0.0.0.0"}, "address is not an IP address"),
        ({"address": "spark1.local"}, "address is not an IP address"),
        ({"address": "10.0.0"}, "address is not an IP address"),
        ({"address": "10.0.0.256"}, "address is not an IP address"),
        ({"address": "10.0.0.1."}, "address is not an IP address"),
        ({"address": "::"}, "address is not an IP address"),
        ({"port": 0}, "port"),
        ({"port": 65536}, "port"),
        ({"join_s": 0}, "join_s"),
        ({"beat_s": float("nan")}, "beat_s"),
        ({"name": "a b"}, "name"),
        ({"token": "x"}, "has no `token`"),
    ],
)
def test_invalid_cluster_is_refused(damage: dict[str, object], why: str) -> None:
    pair = Cluster("pair", 1, ("spark1", "spark2"), "192.168.100.10", 29499)
    plan = Plan(run_id="r", host="spark2", play="Deploy", steps=(), cluster=pair).to_json()
    with pytest.raises(ValueError, match=why):
        Plan.from_json({**plan, "cluster": {**plan["cluster"], **damage}})
