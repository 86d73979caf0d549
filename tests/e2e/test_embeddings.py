"""A recipe for embeddings on the sandbox: verified and checked by a vector instead of text."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project

NAME = "qwen3-embedding-0.6b"


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    with sandbox_project() as project:
        project.edit("hosts/sandbox.yml", "recipe: .*", f"recipe: {NAME}")
        result = project.deploy()
        assert result.code == 0, result.out[-3000:]
        assert result.task("Check that it generates")["msg"].startswith("answers: a vector of 1024 numbers")
        assert result.task("Measure throughput")["msg"] == "no throughput test: it serves embeddings"
        yield project


def test_a_second_deploy_changes_nothing_and_verify_requests_a_vector(served: SandboxProject) -> None:
    second_run = served.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    verified = served.run("verify", "--host", "sandbox")
    assert verified.code == 0, verified.out
    table = verified.out.partition("CHECK")[2]
    assert "throughput" not in table and "a vector of 1024 numbers" in table


def test_health_diagnose_and_client_describe_embeddings(served: SandboxProject) -> None:
    health = served.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "a vector in" in health.out
    diagnosed = served.run("diagnose", "--host", "sandbox")
    assert diagnosed.code == 0 and "it serves embeddings" in diagnosed.out
    client = served.run("client", "--host", "sandbox")
    assert "POST /v1/embeddings" in client.out and "enable_thinking" not in client.out


def test_a_missing_vector_reveals_a_wedged_server(served: SandboxProject) -> None:
    with served.fault("wedge"):
        health = served.run("health.check", "--host", "sandbox", "--token-s", "1")
    assert health.code == 1 and "no vector within 1 s" in health.out
    assert "Run `sparkwright restart --host sandbox`." in health.out


def test_bench_refuses_embeddings_with_the_recipes_line(served: SandboxProject) -> None:
    result = served.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill")
    assert result.code == 5
    assert f"recipes/{NAME}.yml:6" in result.out and "bench measures generated text" in result.out
