"""LoRA adapters of a recipe that two hosts serve together: on both, proved by the head, and rolled back as one."""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.measure import http_probe
from tests.e2e.pair.desk import HOSTS, RECIPE, PairDesk, a_pair

SQL, LAW = "sandbox-org/qwen3.5-35b-sql-lora", "sandbox-org/qwen3.5-35b-law-lora"
NAMES = ("qwen3.5-35b", "sql", "law")


@pytest.fixture(scope="module")
def pair() -> Iterator[PairDesk]:
    with pytest.MonkeyPatch.context() as patch, a_pair() as value:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        adapters = f"adapters:\n  - {{id: {SQL}, name: sql}}\n  - {{id: {LAW}, name: law}}\n\ncontainer:\n"
        value.edit(RECIPE, r"(?m)^container:.*\n", adapters)
        yield value


def text(pair: PairDesk, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    found = http_probe.send_request(f"http://127.0.0.1:{pair.port}", "/v1/chat/completions", body=body, timeout_s=20)
    assert found.status == 200, found.body
    answer: dict[str, Any] = found.json()
    assert answer["model"] == model
    return str(answer["choices"][0]["message"]["content"])


def test_each_adapter_is_on_both_hosts_and_answers_a_second_deploy_changes_nothing_and_a_rollback_has_the_one_before(
    pair: PairDesk,
) -> None:
    deployed = pair.deploy()
    assert deployed.proved, deployed.out[-3000:] + deployed.err
    for host in HOSTS:
        (container,) = pair.running(host)
        words = container["Config"]["Cmd"]
        at = words.index("--lora-modules")
        assert words[at + 1 : at + 3] == ["sql=/adapters/sql", "law=/adapters/law"]
        assert sql_of(pair, host)
    health = next(
        event["msg"]
        for event in deployed.events()
        if event.get("name") == "Check that it generates" and event["host"] == HOSTS[0] and "msg" in event
    )
    assert "; sql: generates: 8 tokens" in health and "; law: generates: 8 tokens" in health
    assert len({text(pair, name) for name in NAMES}) == 3

    before, ids = {host: sql_of(pair, host) for host in HOSTS}, pair.ids()
    again = pair.deploy()
    assert (again.code, again.recap["changed"], pair.ids()) == (0, 0, ids), again.out[-3000:]

    verified = pair.run("verify", "--host", "sandbox-pair")
    assert verified.code == 0 and "sql: generates" in verified.out, verified.out

    for host in HOSTS:
        pair.run("sandbox.fault", "moved-model", "--host", host)
    updated = pair.run("lock", "--host", "sandbox-pair", "--update", SQL, "--yes")
    assert updated.code == 0, updated.err + updated.out
    moved = pair.deploy()
    assert moved.proved, moved.out[-3000:] + moved.err
    assert all(sql_of(pair, host) != before[host] for host in HOSTS)
    rolled = pair.run("rollback", "--host", "sandbox-pair")
    assert rolled.code == 0, rolled.err + rolled.out
    assert {host: sql_of(pair, host) for host in HOSTS} == before
    assert len({text(pair, name) for name in NAMES}) == 3


def sql_of(pair: PairDesk, host: str) -> bytes:
    """The weights of the adapter as they lie on a host."""
    return (pair.folder_of(host) / "home/models/adapters/sql/adapter_model.safetensors").read_bytes()
