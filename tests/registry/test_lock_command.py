"""`invoke lock` with a real registry: reported changes, and completion of old entries."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.stores import lock_update
from sparkwright.project import lockfile
from tests import commands
from tests.registry.images import Images

pytestmark = pytest.mark.docker
TOP = Path(__file__).parent.parent.parent


class Project:
    """A project with this machine as the only host."""

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
def project(images: Images, tmp_path: Path) -> Project:
    return Project(tmp_path, f"{images.name}:nightly")


def test_moved_tag_is_shown_with_version_date_and_digest(images: Images, project: Project) -> None:
    images.push("nightly", seed=1, version="0.31.0")
    first = project.run("lock", "--update", project.image)
    assert first.returncode == 0, first.stderr
    old = project.entry
    moved = images.push("nightly", seed=2, version="0.32.0")
    images.delete(old["digest"])
    result = project.run("lock", "--update", project.image)
    assert (result.returncode, project.entry) == (2, old)
    for words in ("0.31.0 -> 0.32.0", "2026-10-02 -> 2026-10-03", f"-> {moved[:19]}", "no longer has the pinned"):
        assert words in result.stdout
    assert project.run("lock", "--update", project.image, "--yes").returncode == 0
    assert (project.entry["digest"], project.entry["engine_version"]) == (moved, "0.32.0")


def test_old_entry_is_completed_without_following_its_tag(images: Images, project: Project) -> None:
    pinned = images.push("nightly", seed=1)
    images.push("nightly", seed=2)
    lockfile.Lock().with_image(project.image, {"digest": pinned, "engine_version": "0.31.1"}).save(project.root)
    result = project.run("lock")
    assert "does not answer" in result.stderr  # of the model's hub; the image is written nevertheless
    assert project.entry["digest"] == pinned
    assert len(project.entry["manifests"]) == 2
    assert project.entry["engine_version"] == "0.31.1"


def test_changed_files_of_a_model_are_listed() -> None:
    def entry(commit: str, **files: tuple[int, str]) -> dict[str, Any]:
        rows = [{"path": path, "size_bytes": size, "sha256": sha} for path, (size, sha) in files.items()]
        return {"commit": commit * 40, "files": rows}

    old = entry("a", kept=(10, "1" * 64), gone=(20, "2" * 64), other=(30, "3" * 64))
    new = entry("b", kept=(10, "1" * 64), fresh=(4000, "5" * 64), other=(30, "4" * 64))
    changes = lock_update.compare_models(old, new)
    assert [change.what for change in changes] == ["commit", "+ fresh", "- gone", "~ other", "to load"]
    assert changes[-1].after == "4.0 kB"
    assert lock_update.compare_models(old, old) == []


def test_lock_is_sorted(tmp_path: Path) -> None:
    value = {"digest": "sha256:" + "a" * 64}
    lockfile.Lock().with_image("z:1", value).with_image("a:1", value).save(tmp_path)
    assert list(yaml.safe_load((tmp_path / "spark.lock").read_text())["images"]) == ["a:1", "z:1"]
