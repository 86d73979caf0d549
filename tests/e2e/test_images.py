"""`invoke images.prune` as a user gives it."""

from tests.e2e.conftest import SandboxProject


def test_prune_shows_and_asks_and_keeps_what_is_served_and_pinned(project: SandboxProject) -> None:
    assert project.deploy("--tags", "image").code == 0
    pinned = project.run("images.prune", "--host", "sandbox")
    assert (pinned.code, "nothing to free" in pinned.out) == (0, True), pinned.err
    (project.sandbox / "spark.lock").unlink()
    options = project.run("images.prune", "--host", "sandbox")
    assert options.code == 2
    assert "would free" in options.out and "--yes" in options.err
    assert project.run("images.prune", "--host", "sandbox", "--check").code == 2
    assert "freed" in project.run("images.prune", "--host", "sandbox", "--yes").out
    assert "nothing to free" in project.run("images.prune", "--host", "sandbox").out
