"""`doctor` on the sandbox: what a newcomer sees, and how it ends."""

import json
from typing import Any

from tests.e2e.conftest import SandboxProject


def run_doctor(project: SandboxProject, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = project.run("doctor", "--host", "sandbox", "--json", *words)
    (line,) = result.out.splitlines()
    return result.code, {finding["check"]: finding for finding in json.loads(line)["findings"]}


def test_it_looks_and_changes_nothing(project: SandboxProject) -> None:
    code, found = run_doctor(project, "--fix", "--yes")
    assert code == 0
    assert {name for name, value in found.items() if value["verdict"] == "bad"} == set()
    assert found["logout"]["verdict"] == "warning"
    assert "loginctl enable-linger" in found["logout"]["fix"]
    assert found["Ollama"]["verdict"] == "warning"
    assert found["Ollama"]["fix"] == "sparkwright ollama.unload --host sandbox"
    assert found["docker"]["verdict"] == "ok"
    assert found["image platform"]["verdict"] == "unknown"
    assert not (project.root / "spark.lock").exists()
    assert project.containers() == []


def test_it_says_that_it_is_the_sandbox_where_nothing_is_fixed(project: SandboxProject) -> None:
    result = project.run("doctor", "--host", "sandbox", "--fix", "--yes")
    assert result.out.startswith("sandbox is the sandbox: a simulated Spark")
    assert result.out.endswith("Nothing is fixed in the sandbox.\n")


def test_a_port_that_somebody_holds_is_bad_and_shown_with_its_holder(project: SandboxProject) -> None:
    project.run("doctor", "--host", "sandbox")
    project.run("sandbox.fault", "port-taken")
    result = project.run("doctor", "--host", "sandbox")
    assert result.code == 1
    (line,) = [line for line in result.out.splitlines() if line.startswith("port ")]
    assert "bad" in line
    assert f"port {project.port} is in use by" in line
    assert "→ sudo ss -tlnp" in result.out
