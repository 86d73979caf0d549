"""`invoke lock` with a real registry: changes by version, date and size, and completing an old entry."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.stores import lock_update
from sparkwright.project import lockfile
from tests import commands
from tests.registry.server import Registry

pytestmark = pytest.mark.docker
TOP = Path(__file__).parent.parent.parent


class Project:
    """A user's project whose only host is this machine."""

    def __init__(self, folder: Path, image: str) -> None:
        self.root, self.image = folder / "project", image
        for name in ("hosts", "recipes", "playbooks"):
            (self.root / name).mkdir(parents=True)
        (self.root / "hosts/here.yml").write_text("connection: local\nrecipe: bed\n")
        recipe = (TOP / "molecule/bed/recipe.yml").read_text()
        lines = [f"image: {image}" if line.startswith("image:") else line for line in recipe.splitlines()]
        (self.root / "recipes/bed.yml").write_text("\n".join(lines) + "\n")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HOME": str(self.root.parent), "HF_ENDPOINT": "http://127.0.0.1:9"}
        return commands.run(*words, cwd=self.root, env=env)

    @property
    def entry(self) -> dict[str, Any]:
        return dict(lockfile.load(self.root).images[self.image])


@pytest.fixture
def project(registry: Registry, repository: str, tmp_path: Path) -> Project:
    return Project(tmp_path, f"{registry.address}/{repository}:nightly")


def test_a_moved_tag_is_shown_with_version_date_and_digest(
    registry: Registry, engine: Any, repository: str, project: Project
) -> None:
    registry.push(repository, "nightly", seed=1, version="0.31.0")
    filled = project.run("lock", "--update", project.image)
    assert filled.returncode == 0, filled.stderr
    old = project.entry
    moved = registry.push(repository, "nightly", seed=2, version="0.32.0")
    registry.delete(repository, old["digest"])
    result = project.run("lock", "--update", project.image)
    assert (result.returncode, project.entry) == (2, old)
    for words in ("0.31.0 -> 0.32.0", "2026-10-02 -> 2026-10-03", f"-> {moved[:19]}", "no longer has the pinned"):
        assert words in result.stdout
    assert project.run("lock", "--update", project.image, "--yes").returncode == 0
    assert (project.entry["digest"], project.entry["engine_version"]) == (moved, "0.32.0")


def test_an_old_entry_is_made_whole_without_following_its_tag(
    registry: Registry, engine: Any, repository: str, project: Project
) -> None:
    pinned = registry.push(repository, "nightly", seed=1)
    registry.push(repository, "nightly", seed=2)
    lockfile.Lock().with_image(project.image, {"digest": pinned, "engine_version": "0.31.1"}).save(project.root)
    result = project.run("lock")
    assert "does not answer" in result.stderr  # the model's hub; the image is written all the same
    assert project.entry["digest"] == pinned
    assert len(project.entry["manifests"]) == 2
    assert project.entry["engine_version"] == "0.31.1"


def test_files_of_a_model_are_named_as_added_removed_and_changed() -> None:
    def entry(commit: str, **files: tuple[int, str]) -> dict[str, Any]:
        rows = [
            {"path": path, "size_bytes": size, "sha256": sha, "blob_id": None} for path, (size, sha) in files.items()
        ]
        return {"commit": commit * 40, "files": rows}

    old = entry("a", kept=(10, "1" * 64), gone=(20, "2" * 64), other=(30, "3" * 64))
    new = entry("b", kept=(10, "1" * 64), fresh=(4000, "5" * 64), other=(30, "4" * 64))
    assert [row.what for row in lock_update.compare_models(old, new)] == [
        "commit",
        "+ fresh",
        "- gone",
        "~ other",
        "to load",
    ]
    assert lock_update.compare_models(old, new)[-1].after == "4.0 kB"
    assert lock_update.compare_models(old, old) == []


def test_the_lock_is_sorted_and_says_the_same_again(tmp_path: Path) -> None:
    value = {"digest": "sha256:" + "a" * 64}
    lockfile.Lock().with_image("z:1", value).with_image("a:1", value).save(tmp_path)
    first = (tmp_path / "spark.lock").read_text()
    assert list(yaml.safe_load(first)["images"]) == ["a:1", "z:1"]
    lockfile.load(tmp_path).save(tmp_path)
    assert (tmp_path / "spark.lock").read_text() == first
