"""Plans and their clusters as JSON; invalid ones are refused."""

import json
from dataclasses import replace

import pytest

from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Block, Plan, Step, Task, tasks_of

PAIR = Cluster("pair", 1, ("spark1", "spark2"), "192.168.100.10", 29499)


def build_plan(*steps: Step, cluster: Cluster | None = None) -> Plan:
    return Plan(run_id="r", host="spark2", play="Deploy", steps=steps, cluster=cluster)


def assert_survives_json(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_plan_survives_json() -> None:
    stop = Task(id="2.1", name="stop", module="stop_and_keep", notify=("tell",))
    swap = Block(id="2", name="swap", tasks=(stop,), when=("x",))
    assert_survives_json(build_plan(Task(id="1", name="a", module="facts"), swap))


def test_plan_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 99"):
        Plan.from_json({"schema": 99})


def test_tasks_are_listed_in_reading_order() -> None:
    first, second, third = (Task(id=str(n), name=str(n), module="facts") for n in range(3))
    block = Block(id="b", name="b", tasks=(first,), rescue=(second,), always=(third,))
    assert [task.id for task in tasks_of((block,))] == ["0", "1", "2"]


def test_plan_without_a_cluster_has_no_cluster_key() -> None:
    assert "cluster" not in build_plan().to_json()


@pytest.mark.parametrize("address", ["192.168.100.10", "127.0.0.1", "::1", "fd00::a:1"])
def test_cluster_of_a_plan_survives_json(address: str) -> None:
    assert_survives_json(build_plan(cluster=replace(PAIR, address=address)))


@pytest.mark.parametrize(
    ("damage", "message"),
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
def test_invalid_cluster_is_refused(damage: dict[str, object], message: str) -> None:
    plan = build_plan(cluster=PAIR).to_json()
    with pytest.raises(ValueError, match=message):
        Plan.from_json({**plan, "cluster": {**plan["cluster"], **damage}})
