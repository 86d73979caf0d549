"""Files of a project are parsed once in a command, and read anew when they change."""

from pathlib import Path

from sparkwright.project import recipe
from sparkwright.project.documents import document
from tests.project.importing.forms import import_recipe


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "spark1.yml"
    path.write_text("address: 10.0.0.1\nvars: {reserve_gib: 4}\n")
    assert document.load(path).data["address"] == "10.0.0.1"
    path.write_text("# moved\naddress: 10.0.0.2\n")
    read = document.load(path)
    assert read.data == {"address": "10.0.0.2"} and read.where("address").endswith("spark1.yml:2")


def test_what_one_reader_changes_in_its_copy_others_do_not_see(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("share: 0.90\nlist: [1]\n")
    first = document.load(path)
    first.data["list"].append(2)
    del first.data["share"]
    second = document.load(path)
    assert second.data == {"share": 0.9, "list": [1]} and str(second.data["share"]) == "0.90"


def test_a_recipe_is_checked_once_and_again_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "recipes/tiny.yml"
    path.parent.mkdir()
    path.write_text(import_recipe("docker run vllm/vllm-openai:v0.32.0 --model acme/Tiny --seed 1").text)
    first = recipe.load(tmp_path, "tiny")
    assert recipe.load(tmp_path, "tiny") is first
    path.write_text(path.read_text().replace("seed: 1", "seed: 2"))
    assert recipe.load(tmp_path, "tiny").file.flags["seed"] == 2 and first.file.flags["seed"] == 1
