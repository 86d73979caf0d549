"""`doctor` on the sandbox."""

import json
from typing import Any

from tests.e2e.conftest import SandboxProject


def run_doctor(project: SandboxProject, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = project.run("doctor", "--host", "sandbox", "--json", *words)
    (line,) = result.out.splitlines()
    return result.code, {finding["check"]: finding for finding in json.loads(line)["findings"]}


def test_doctor_changes_nothing_in_the_sandbox(project: SandboxProject) -> None:
    code, findings = run_doctor(project, "--fix", "--yes")
    assert code == 0
    verdicts = {name: finding["verdict"] for name, finding in findings.items()}
    expected = {"logout": "warning", "Ollama": "warning", "docker": "ok", "image platform": "unknown"}
    assert expected.items() <= verdicts.items() and "bad" not in verdicts.values()
    assert "loginctl enable-linger" in findings["logout"]["fix"]
    assert findings["Ollama"]["fix"] == "sparkwright ollama.unload --host sandbox"
    assert not (project.root / "spark.lock").exists()
    assert project.containers() == []


def test_doctor_reports_that_the_sandbox_is_simulated_and_fixes_nothing(project: SandboxProject) -> None:
    result = project.run("doctor", "--host", "sandbox", "--fix", "--yes")
    assert result.out.startswith("sandbox is the sandbox: a simulated Spark")
    assert result.out.endswith("Nothing is fixed in the sandbox.\n")


def test_an_occupied_port_is_bad_and_shown_with_its_owner(project: SandboxProject) -> None:
    project.run("doctor", "--host", "sandbox")
    project.run("sandbox.fault", "port-taken")
    result = project.run("doctor", "--host", "sandbox")
    assert result.code == 1
    (line,) = [line for line in result.out.splitlines() if line.startswith("port ")]
    assert "bad" in line and f"port {project.port} is in use by" in line
    assert "→ sudo ss -tlnp" in result.out
