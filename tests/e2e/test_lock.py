"""`invoke lock` as a user gives it: fill, look, move on."""

import json
from typing import Any

import yaml

from tests.e2e.conftest import CommandResult, SandboxProject

IMAGE = "vllm/vllm-openai:v0.32.0"


def entries(result: CommandResult) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (json.loads(line) for line in result.out.splitlines())}


def locked_digest(project: SandboxProject) -> str:
    return str(yaml.safe_load((project.sandbox / "spark.lock").read_text())["images"][IMAGE]["digest"])


def test_lock_fills_what_is_missing_and_is_content_the_second_time(project: SandboxProject) -> None:
    first = project.run("lock", "--host", "sandbox")
    assert (first.code, "new" in first.out) == (0, True), first.err
    text = (project.sandbox / "spark.lock").read_text()
    assert "spark.lock: unchanged" in project.run("lock", "--host", "sandbox").out
    assert (project.sandbox / "spark.lock").read_text() == text
    assert not (project.root / "spark.lock").exists()


def test_a_moved_tag_is_seen_by_check_shown_by_update_and_written_only_with_a_yes(project: SandboxProject) -> None:
    filled = project.run("lock", "--host", "sandbox")
    assert filled.code == 0, filled.err
    assert project.run("lock", "--host", "sandbox", "--check").code == 0
    before = locked_digest(project)
    project.run("sandbox.fault", "moved-tag")
    looked = project.run("lock", "--host", "sandbox", "--check", "--json")
    assert (looked.code, entries(looked)[IMAGE]["state"]) == (2, "moved")
    unasked = project.run("lock", "--host", "sandbox", "--update")
    assert (unasked.code, locked_digest(project)) == (2, before)
    assert "sha256:" in unasked.out and "->" in unasked.out and "--yes" in unasked.err
    assert project.run("lock", "--host", "sandbox", "--update", IMAGE, "--yes").code == 0
    assert locked_digest(project) != before
    assert project.run("lock", "--host", "sandbox", "--check").code == 0


def test_a_name_that_nothing_has_is_refused_with_the_nearest(project: SandboxProject) -> None:
    result = project.run("lock", "--host", "sandbox", "--update", "qwen3.5-35")
    assert result.code == 5
    assert "qwen3.5-35b" in result.err


def test_update_and_check_together_are_refused(project: SandboxProject) -> None:
    assert project.run("lock", "--host", "sandbox", "--update", "--check").code == 5


def test_a_lock_whose_files_lead_elsewhere_is_refused_with_its_line_before_anything_is_asked(
    project: SandboxProject,
) -> None:
    assert project.run("lock", "--host", "sandbox").code == 0
    lock = project.sandbox / "spark.lock"
    lines = lock.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "path: README.md" in line)
    lines[at] = lines[at].replace("README.md", "../../.ssh/authorized_keys")
    lock.write_text("".join(lines))
    for command in (("plan",), ("models.verify",), ("lock", "--check")):
        result = project.run(*command, "--host", "sandbox")
        assert result.code == 5, result.err
        assert f"spark.lock:{at + 1}: " in result.err + result.out
        assert "'../../.ssh/authorized_keys' leaves its folder" in result.err + result.out
