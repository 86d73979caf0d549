"""`lock`: create, check and update."""

import contextlib

import pytest
import yaml

from tests.e2e.conftest import SandboxProject
from tests.modules.loopback_hub import LoopbackHub
from tests.on_a_terminal import open_screen

IMAGE = "vllm/vllm-openai:v0.32.0"


def locked_digest(project: SandboxProject) -> str:
    return str(yaml.safe_load((project.sandbox / "spark.lock").read_text())["images"][IMAGE]["digest"])


def test_lock_adds_missing_entries_and_then_changes_nothing(project: SandboxProject) -> None:
    first = project.run("lock", "--host", "sandbox")
    assert "\n.sandbox/spark.lock: " in first.out
    assert (first.code, "new" in first.out) == (0, True), first.err
    text = (project.sandbox / "spark.lock").read_text()
    assert "spark.lock: unchanged" in project.run("lock", "--host", "sandbox").out
    assert (project.sandbox / "spark.lock").read_text() == text
    assert not (project.root / "spark.lock").exists()


def test_a_moved_tag_is_found_by_check_and_written_only_with_yes(project: SandboxProject) -> None:
    filled = project.run("lock", "--host", "sandbox")
    assert filled.code == 0, filled.err
    assert project.run("lock", "--host", "sandbox", "--check").code == 0
    before = locked_digest(project)
    project.run("sandbox.fault", "moved-tag")
    checked = project.run("lock", "--host", "sandbox", "--check", "--json")
    assert checked.code == 2
    assert {row["name"]: row["state"] for row in checked.events()}[IMAGE] == "moved"
    unconfirmed = project.run("lock", "--host", "sandbox", "--update")
    assert (unconfirmed.code, locked_digest(project)) == (2, before)
    assert "sha256:" in unconfirmed.out and "->" in unconfirmed.out and "--yes" in unconfirmed.err
    assert ".sandbox/spark.lock: unchanged." in unconfirmed.err
    update = ("lock", "--host", "sandbox", "--update")
    with open_screen(*update, cwd=project.root, env=project.environment()) as terminal:
        terminal.wait_for("Write this to .sandbox/spark.lock?")
        terminal.type("n\n")
        assert terminal.wait_for_exit() == 2
    assert project.run("lock", "--host", "sandbox", "--update", IMAGE, "--yes").code == 0
    assert locked_digest(project) != before
    assert project.run("lock", "--host", "sandbox", "--check").code == 0


def test_a_proxy_of_the_laptop_is_not_used_for_the_sandbox(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    result = project.run("lock", "--host", "sandbox")
    assert result.code == 0, result.err


def test_a_pause_that_the_hub_requests_is_shown(project: SandboxProject) -> None:
    assert project.run("lock", "--host", "sandbox").code == 0  # starts the sandbox
    with contextlib.closing(LoopbackHub({"config.json": b"{}"})) as hub:
        hub.faults.status, hub.faults.headers[""] = 429, {"Retry-After": "1"}
        host = project.root / "hosts/sandbox.yml"
        host.write_text(f"{host.read_text()}\nenv: {{HF_ENDPOINT: '{hub.url}'}}\n")
        result = project.run("lock", "--host", "sandbox", "--update")
    assert result.code == 5
    assert result.err.count(f"sandbox: the hub {hub.url} returned 429. Retrying in 1 s.") == 2
    assert "The limit is higher with a token" in result.err


def test_an_unknown_name_and_contradictory_options_are_refused(project: SandboxProject) -> None:
    result = project.run("lock", "--host", "sandbox", "--update", "qwen3.5-35")
    assert result.code == 5 and "qwen3.5-35b" in result.err
    assert project.run("lock", "--host", "sandbox", "--update", "--check").code == 5
