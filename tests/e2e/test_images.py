"""`images.prune`."""

from tests.e2e.conftest import SandboxProject


def test_prune_lists_asks_and_keeps_served_and_pinned_images(project: SandboxProject) -> None:
    assert project.deploy("--tags", "image").code == 0
    pinned = project.run("images.prune", "--host", "sandbox")
    assert (pinned.code, "nothing to free" in pinned.out) == (0, True), pinned.err
    (project.sandbox / "spark.lock").unlink()
    listed = project.run("images.prune", "--host", "sandbox")
    assert listed.code == 2 and "would free" in listed.out and "--yes" in listed.err
    assert project.run("images.prune", "--host", "sandbox", "--check").code == 2
    assert "freed" in project.run("images.prune", "--host", "sandbox", "--yes").out
    assert "nothing to free" in project.run("images.prune", "--host", "sandbox").out
