"""A recipe that makes vectors, on the sandbox: proved by a vector, looked after, and told apart from one that generates."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project

NAME = "qwen3-embedding-0.6b"


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.edit("hosts/sandbox.yml", "recipe: .*", f"recipe: {NAME}")
        result = project.deploy()
        assert result.code == 0, result.out[-3000:]
        assert result.task("Check that it generates")["msg"].startswith("answers: a vector of 1024 numbers")
        assert result.task("Measure throughput")["msg"] == "no throughput test: it serves embeddings"
        yield project


def test_a_second_deploy_changes_nothing_and_verify_proves_it(served: SandboxProject) -> None:
    second_run = served.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    verified = served.run("verify", "--host", "sandbox")
    assert verified.code == 0, verified.out
    table = verified.out.partition("CHECK")[2]
    assert "throughput" not in table and "a vector of 1024 numbers" in table


def test_health_diagnose_and_client_speak_of_vectors(served: SandboxProject) -> None:
    health = served.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "a vector in" in health.out
    diagnosed = served.run("diagnose", "--host", "sandbox")
    assert diagnosed.code == 0 and "it serves embeddings" in diagnosed.out
    client = served.run("client", "--host", "sandbox")
    assert "POST /v1/embeddings" in client.out and "enable_thinking" not in client.out


def test_a_wedged_one_is_found_by_the_vector_that_never_comes(served: SandboxProject) -> None:
    assert served.run("sandbox.fault", "wedge").code == 0
    try:
        health = served.run("health.check", "--host", "sandbox", "--token-s", "1")
        assert health.code == 1 and "no vector within 1 s" in health.out
        assert "Run `sparkwright restart --host sandbox`." in health.out
    finally:
        served.run("sandbox.fault", "none")


def test_bench_is_refused_with_the_line(served: SandboxProject) -> None:
    result = served.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill")
    assert result.code == 5
    assert f"recipes/{NAME}.yml:6" in result.out and "bench measures generated text" in result.out
