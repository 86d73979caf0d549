"""The lab over a real sshd, on a real Docker Engine: arms come and go, the laptop's connection may drop, the server is put back."""

import json

import pytest

from tests.bed.conftest import BedProject

pytestmark = pytest.mark.bed

WORDS = ("bench.ab", "--host", "spark1", "--flag", "chunked-prefill", "--loads", "serve", "--requests", "2")
SMALL = ("--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6", "--json")


def server_state(lab: BedProject) -> str:
    return lab.on("spark1", "docker inspect -f '{{.Id}} {{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' qwen35")


def test_benchmark_survives_a_lost_connection_and_restores_the_server(bare: BedProject) -> None:
    assert bare.run("deploy", "--host", "spark1", "--json").code == 0
    before = server_state(bare)
    laptop = bare.start(*WORDS, *SMALL)
    assert laptop.stdout is not None
    for line in laptop.stdout:
        if '"event": "task_started"' in line and '"name": "Measure a' in line:
            bare.on("spark1", "sudo pkill -KILL -u ops -f 'sshd: ops'")
            break
    laptop.communicate(timeout=60)
    assert laptop.returncode == 3
    bare.run("attach", "--host", "spark1", "--json")
    result = bare.run(*WORDS, *SMALL)
    assert result.code == 0, result.out + result.err
    assert '"name": "Start the arm"' not in result.out
    results = json.loads((bare.root / "results/ab-spark1/results.json").read_text())
    assert [cell["arm"] for cell in results["cells"]] == ["a", "b", "b", "a"]
    assert [arm["effective"]["chunked_prefill"] for arm in results["arms"]] == [True, False]
    assert (results["sandbox"], results["host"]) == (False, "spark1")
    assert server_state(bare) == before
    assert bare.on("spark1", "docker ps -a --format '{{.Names}}'").split() == ["qwen35"]
