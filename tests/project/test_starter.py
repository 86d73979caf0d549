"""`init` writes a project; in an existing one, `init --diff` shows the differences as a patch for git."""

import subprocess
from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.project import ejection, starter


def test_new_project_has_no_differences(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    assert starter.build_patch(tmp_path) == ""


def test_git_applies_the_patch_of_edited_and_missing_files(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    missing, recipe, host = (
        tmp_path / name for name in ("recipes/gpt-oss-120b.yml", "recipes/qwen3-1.7b.yml", "hosts/spark1.yml")
    )
    shipped = {path: path.read_bytes() for path in (missing, recipe)}
    recipe.write_text(recipe.read_text() + "# ours")  # without a final newline
    missing.unlink()
    host.write_text("address: 192.168.1.20\n")
    (tmp_path / "recipes/ours.yml").write_text("image: a\n")
    patch = starter.build_patch(tmp_path)
    assert "-# ours\n" in patch and "ours.yml" not in patch and "hosts/" not in patch and "playbooks/" not in patch
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, check=True, input=patch.encode())
    assert {path: path.read_bytes() for path in shipped} == shipped
    assert host.read_text() == "address: 192.168.1.20\n"
    assert starter.build_patch(tmp_path) == ""


def test_patch_excludes_an_ejected_file(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    ejection.eject(tmp_path, "playbooks/parts/prove.yml")
    assert starter.build_patch(tmp_path) == ""


def test_wrong_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no hosts/ and recipes/ in"):
        starter.build_patch(tmp_path)
    starter.write_starter(tmp_path)
    with pytest.raises(Refused, match="init --diff"):
        starter.write_starter(tmp_path)


def test_init_writes_only_hosts_recipes_and_tasks(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["hosts", "recipes", "tasks.py"]
