"""LoRA adapters in a cluster of two hosts: deployed to both, verified by the head, and rolled back together."""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.measure import http_probe
from tests.e2e.pair.project import HOSTS, RECIPE, PairProject, pair_project

SQL, LAW = "sandbox-org/qwen3.5-35b-sql-lora", "sandbox-org/qwen3.5-35b-law-lora"
NAMES = ("qwen3.5-35b", "sql", "law")


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pair_project() as value:
        adapters = f"adapters:\n  - {{id: {SQL}, name: sql}}\n  - {{id: {LAW}, name: law}}\n\ncontainer:\n"
        value.edit(RECIPE, r"(?m)^container:.*\n", adapters)
        yield value


def generate_text(pair: PairProject, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    response = http_probe.send_request(f"http://127.0.0.1:{pair.port}", "/v1/chat/completions", body=body, timeout_s=20)
    assert response.status == 200, response.body
    answer: dict[str, Any] = response.json()
    assert answer["model"] == model
    return str(answer["choices"][0]["message"]["content"])


def test_adapters_are_deployed_updated_and_rolled_back_on_both_hosts(pair: PairProject) -> None:
    deployed = pair.deploy()
    assert deployed.proved, deployed.out[-3000:] + deployed.err
    for host in HOSTS:
        (container,) = pair.running(host)
        command = container["Config"]["Cmd"]
        position = command.index("--lora-modules")
        assert command[position + 1 : position + 3] == ["sql=/adapters/sql", "law=/adapters/law"]
        assert read_sql_weights(pair, host)
    health = deployed.task_by_host("Check that it generates")[HOSTS[0]]["msg"]
    assert "; sql: generates: 8 tokens" in health and "; law: generates: 8 tokens" in health
    assert len({generate_text(pair, name) for name in NAMES}) == 3

    before, ids = {host: read_sql_weights(pair, host) for host in HOSTS}, pair.ids()
    second_run = pair.deploy()
    assert (second_run.code, second_run.recap["changed"], pair.ids()) == (0, 0, ids), second_run.out[-3000:]

    verified = pair.run("verify", "--host", "sandbox-pair")
    assert verified.code == 0 and "sql: generates" in verified.out, verified.out

    for host in HOSTS:
        pair.run("sandbox.fault", "moved-model", "--host", host)
    updated = pair.run("lock", "--host", "sandbox-pair", "--update", SQL, "--yes")
    assert updated.code == 0, updated.err + updated.out
    moved = pair.deploy()
    assert moved.proved, moved.out[-3000:] + moved.err
    assert all(read_sql_weights(pair, host) != before[host] for host in HOSTS)
    rolled = pair.run("rollback", "--host", "sandbox-pair")
    assert rolled.code == 0, rolled.err + rolled.out
    assert {host: read_sql_weights(pair, host) for host in HOSTS} == before
    assert len({generate_text(pair, name) for name in NAMES}) == 3


def read_sql_weights(pair: PairProject, host: str) -> bytes:
    return (pair.folder_of(host) / "home/models/adapters/sql/adapter_model.safetensors").read_bytes()
