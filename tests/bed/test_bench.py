"""`bench.ab` over a real sshd on a real Docker Engine: it survives a lost connection and restores the server."""

import json

from tests.bed.conftest import BedProject

COMMAND = ("bench.ab", "--host", "spark1", "--flag", "chunked-prefill", "--loads", "serve", "--requests", "2")
SMALL = ("--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6", "--json")


def test_benchmark_survives_a_lost_connection_and_restores_the_server(bare: BedProject) -> None:
    bare.deployed()
    before = bare.server()
    laptop = bare.start_until('"name": "Measure a', *COMMAND, *SMALL)
    bare.cut("spark1")
    laptop.communicate(timeout=60)
    assert laptop.returncode == 3
    bare.run("attach", "--host", "spark1", "--json")
    result = bare.run(*COMMAND, *SMALL)
    assert result.code == 0, result.output
    assert '"name": "Start the arm"' not in result.out
    results = json.loads((bare.root / "results/ab-spark1/results.json").read_text())
    assert [cell["arm"] for cell in results["cells"]] == ["a", "b", "b", "a"]
    assert [arm["effective"]["chunked_prefill"] for arm in results["arms"]] == [True, False]
    assert (results["sandbox"], results["host"]) == (False, "spark1")
    assert bare.server() == before
    assert bare.on("spark1", "docker ps -a --format '{{.Names}}'").split() == ["qwen35"]
