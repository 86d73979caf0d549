"""The screen of a run on a terminal with 80 columns: one line per stage, and a summary of a failure."""

import pytest

from tests.e2e.conftest import SandboxProject
from tests.on_a_terminal import open_screen

COLUMNS = 80
RECIPE = "recipes/qwen3.5-35b.yml"


def run_on_screen(project: SandboxProject, *words: str) -> tuple[int, list[str]]:
    """Run a command on a terminal, and return its exit code and the final lines."""
    with open_screen(*words, cwd=project.root, env=project.environment(), columns=COLUMNS) as terminal:
        code = terminal.wait_for_exit(120)
        return code, terminal.lines


def list_stages(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith(("✓", "✗"))]


def test_a_deploy_shows_one_line_per_stage_and_at_most_five_without_changes(project: SandboxProject) -> None:
    code, first = run_on_screen(project, "deploy", "--host", "sandbox")
    output = "\n".join(first)
    assert code in (0, 4), output
    assert list_stages(first) == ["pin", "prepare", "stop", "start", "verify"], output
    assert len(first) <= 25 and max(map(len, first)) <= COLUMNS, output
    assert "generates: 8 tokens" in output and "skipped" not in output.replace("skipped=", ""), output
    project.deployed()
    code, second = run_on_screen(project, "deploy", "--host", "sandbox")
    assert code == 0 and len(second) <= 5, second
    assert "matches the recipe; generates: 1 token" in second[1], second
    code, every_task = run_on_screen(project, "deploy", "--host", "sandbox", "-v")
    assert code == 0 and any(line.startswith("ok       Gather facts") for line in every_task), every_task
    assert any(line.startswith("skipped  ") for line in every_task), every_task


def test_verified_models_have_lines_that_fit(project: SandboxProject) -> None:
    project.deployed()
    code, lines = run_on_screen(project, "models.verify", "--host", "sandbox")
    assert code == 0 and max(map(len, lines)) <= COLUMNS, lines
    text = "sandbox Qwen/Qwen3.5-35B-A3B-FP8 complete: 19 files, 35.0 MB, unchanged since they were verified"
    assert " ".join(" ".join(lines).split()) == text


def test_a_failure_ends_with_task_reason_evidence_and_outcome(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("sandbox.fault", "oom").code == 0
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    code, lines = run_on_screen(project, "deploy", "--host", "sandbox")
    output = "\n".join(lines)
    assert code == 1, output
    assert list_stages(lines) == ["prepare", "stop", "start", "rescue"], output
    assert len(lines) < 40, "nothing has scrolled away"
    end = [n for n, line in enumerate(lines) if line.startswith("failed   Wait until it is ready: ")]
    assert end and any(line.startswith("  | ") for line in lines[end[0] :]), output
    assert "outcome  The previous server is restored." in lines, output
    assert lines[-1].startswith("→ ") or lines[-2].startswith("→ "), output


def test_a_rescue_that_fails_for_the_same_reason_is_shown_as_failed(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("sandbox.fault", "oom").code == 0
    code, lines = run_on_screen(project, "restart", "--host", "sandbox")
    output = "\n".join(lines)
    assert code == 1, output
    marks = {line.split()[1]: line[0] for line in lines if line.startswith(("✓", "✗"))}
    assert (marks["start"], marks["rescue"]) == ("✗", "✗"), output


@pytest.mark.parametrize("words", [("deploy", "--host", "sandbox"), ("deploy", "--host", "sandbox", "--json")])
def test_in_a_pipe_each_task_has_a_line(project: SandboxProject, words: tuple[str, ...]) -> None:
    project.deployed()
    result = project.run(*words)
    assert result.code == 0 and "Gather facts" in result.out and "Pull image by digest" in result.out
