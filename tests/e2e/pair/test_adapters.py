"""LoRA adapters in a cluster of two hosts: deployed to both, verified by the head, and rolled back together."""

from collections.abc import Iterator

import pytest

from tests.e2e.pair.project import HOSTS, RECIPE, PairProject, pair_project
from tests.e2e.test_adapters import ADAPTERS, NAMES, SQL, generate_text, read_sql_weights


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pair_project() as value:
        value.edit(RECIPE, r"(?m)^container:.*\n", ADAPTERS)
        yield value


def test_adapters_are_deployed_updated_and_rolled_back_on_both_hosts(pair: PairProject) -> None:
    deployed = pair.deploy()
    assert deployed.proved, deployed.out[-3000:] + deployed.err
    for host in HOSTS:
        (container,) = pair.running(host)
        command = container["Config"]["Cmd"]
        position = command.index("--lora-modules")
        assert command[position + 1 : position + 3] == ["sql=/adapters/sql", "law=/adapters/law"]
        assert read_sql_weights(pair.folder_of(host))
    health = deployed.task_by_host("Check that it generates")[HOSTS[0]]["msg"]
    assert "; sql: generates: 8 tokens" in health and "; law: generates: 8 tokens" in health
    assert len({generate_text(pair.port, name) for name in NAMES}) == 3

    before, ids = {host: read_sql_weights(pair.folder_of(host)) for host in HOSTS}, pair.ids()
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
    assert all(read_sql_weights(pair.folder_of(host)) != before[host] for host in HOSTS)
    rolled = pair.run("rollback", "--host", "sandbox-pair")
    assert rolled.code == 0, rolled.err + rolled.out
    assert {host: read_sql_weights(pair.folder_of(host)) for host in HOSTS} == before
    assert len({generate_text(pair.port, name) for name in NAMES}) == 3
