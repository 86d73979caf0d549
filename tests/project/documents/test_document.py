"""Files of a project are parsed once, and again after a change."""

from pathlib import Path

from sparkwright.project import recipe
from sparkwright.project.documents import document
from tests.project.importing.forms import import_recipe


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "spark1.yml"
    path.write_text("address: 10.0.0.1\nvars: {reserve_gib: 4}\n")
    assert document.load(path).data["address"] == "10.0.0.1"
    path.write_text("# moved\naddress: 10.0.0.2\n")
    changed = document.load(path)
    assert changed.data == {"address": "10.0.0.2"} and changed.where("address").endswith("spark1.yml:2")


def test_readers_have_separate_copies(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("share: 0.90\nlist: [1]\n")
    first = document.load(path)
    first.data["list"].append(2)
    del first.data["share"]
    second = document.load(path)
    assert second.data == {"share": 0.9, "list": [1]} and str(second.data["share"]) == "0.90"


def test_recipe_is_validated_again_only_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "recipes/tiny.yml"
    path.parent.mkdir()
    path.write_text(import_recipe("docker run vllm/vllm-openai:v0.32.0 --model acme/Tiny --seed 1").text)
    first = recipe.load(tmp_path, "tiny")
    assert recipe.load(tmp_path, "tiny") is first
    path.write_text(path.read_text().replace("seed: 1", "seed: 2"))
    assert recipe.load(tmp_path, "tiny").file.flags["seed"] == 2 and first.file.flags["seed"] == 1
