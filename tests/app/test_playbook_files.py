"""`playbook.eject`, `playbook.update`, `playbook.clean` and what `lint` says, as a user types them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import sparkwright
from sparkwright.project import shipped_files, starter
from sparkwright.version import __version__
from tests import commands

PART = "playbooks/parts/prove.yml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    starter.write_starter(tmp_path / "project")
    return tmp_path / "project"


@dataclass
class InstalledCopy:
    """sparkwright as a wheel installs it, with shipped files that a test may change."""

    site: Path

    @property
    def shipped(self) -> Path:
        return self.site / "sparkwright/starter"

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from sparkwright.cli import main; main()", *words]
        env = {**os.environ, "PYTHONPATH": str(self.site)}
        return subprocess.run(
            program, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
        )


@pytest.fixture
def newer(tmp_path: Path) -> InstalledCopy:
    installed = InstalledCopy(tmp_path / "site")
    package = Path(sparkwright.__file__).parent
    installed.shipped.mkdir(parents=True)
    for path in package.iterdir():
        if path.name == "starter":  # of a wheel
            continue
        (installed.shipped.parent / path.name).symlink_to(path)
    for folder in (*starter.STARTER_FOLDERS, *shipped_files.SHIPPED_FOLDERS):
        shutil.copytree(shipped_files.shipped_folder() / folder, installed.shipped / folder)
    return installed


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def parse_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_part_is_ejected_changed_and_merged_after_an_upgrade(project: Path, newer: InstalledCopy) -> None:
    result = newer.run("playbook.eject", "parts/prove", cwd=project)
    assert (result.returncode, result.stdout.splitlines()[0].split(": ")[0]) == (0, PART)
    again = newer.run("playbook.eject", "parts/prove", cwd=project)
    assert (again.returncode, f"{PART} exists in this project" in again.stderr) == (5, True)
    quiet = newer.run("lint", cwd=project)
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ask it for a token\n")
    (newer.shipped / PART).write_text((newer.shipped / PART).read_text() + "\n- name: New\n  facts:\n")
    lint = newer.run("lint", cwd=project)
    shown = [line for line in lint.stdout.splitlines() if line not in quiet.stdout.splitlines()]
    assert (
        shown[0] == f"{PART}: the shipped file has changed since sparkwright {__version__}, from which it was ejected."
    )
    assert "  +- name: New" in shown and "  +- name: Ask it for a token" in shown
    assert "playbook.update parts/prove` merges the changes to the shipped file into yours" in shown[-1]
    (about,) = json.loads(newer.run("lint", "--json", cwd=project).stdout)["playbooks"]
    assert (about["file"], about["state"], about["moved"], about["conflicts"]) == (PART, "changed", True, [])
    assert newer.run("playbook.update", "parts/prove", "--check", cwd=project).returncode == 2
    assert "New" not in (project / PART).read_text()
    assert newer.run("playbook.update", "parts/prove", cwd=project).returncode == 0
    assert {"- name: New", "- name: Ask it for a token"} <= {*(project / PART).read_text().splitlines()}
    assert newer.run("lint", cwd=project).stdout == quiet.stdout


def test_a_conflict_names_the_line_and_mine_settles_it(project: Path, newer: InstalledCopy) -> None:
    newer.run("playbook.eject", "parts/prove", cwd=project)
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ours\n")
    replace_text(newer.shipped / PART, "- name: Check that it generates\n", "- name: Theirs\n")
    before = (project / PART).read_text()
    result = newer.run("playbook.update", "parts/prove", cwd=project)
    line = before.splitlines().index("- name: Ours") + 1
    assert result.returncode == 5 and result.stderr.startswith(f"{PART}:{line}: ")
    assert (project / PART).read_text() == before
    assert newer.run("playbook.update", "parts/prove", "--mine", cwd=project).returncode == 0
    assert "- name: Ours" in (project / PART).read_text()
    assert "changed since" not in newer.run("lint", cwd=project).stdout


def test_the_list_shows_the_state_of_each_file(project: Path) -> None:
    commands.run("playbook.eject", "client.j2", cwd=project)
    commands.run("playbook.eject", "parts/prove", cwd=project)
    replace_text(project / PART, "- name: ", "- name: My ")
    (project / "playbooks/ours.yml").write_text("- hosts: all\n  tasks: []\n")
    shutil.copy(shipped_files.shipped_folder() / "playbooks/verify.yml", project / "playbooks")
    states = {
        row["file"]: row["state"]
        for row in parse_lines(commands.run("playbook.eject", "--list", "--json", cwd=project).stdout)
    }
    assert {states.pop(name) for name in ("templates/client.j2",)} == {"ejected"}
    assert [states.pop(name) for name in (PART, "playbooks/ours.yml", "playbooks/verify.yml")] == [
        "changed",
        "own",
        "copied",
    ]
    assert {*states.values()} == {"shipped"}


def test_a_project_of_an_earlier_version_is_cleaned_after_asking(project: Path) -> None:
    for folder in shipped_files.SHIPPED_FOLDERS:
        shutil.copytree(shipped_files.shipped_folder() / folder, project / folder)
    mine = project / "playbooks/verify.yml"
    mine.write_text(mine.read_text() + "# ours\n")
    lint = commands.run("lint", cwd=project)
    assert "an earlier `init` left unchanged copies" in lint.stdout and lint.returncode == 0
    before = sorted(project.rglob("*"))
    for words in (["--check"], []):  # no terminal to ask
        result = commands.run("playbook.clean", *words, cwd=project)
        assert result.returncode == 2 and "changed in this project" in result.stdout
        assert sorted(project.rglob("*")) == before
    assert commands.run("playbook.clean", "--yes", cwd=project).returncode == 0
    left = sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file())
    assert [name for name in left if name.split("/")[0] in shipped_files.SHIPPED_FOLDERS] == [
        "playbooks/verify.yml",
        "schemas/playbook.json",  # its first line names it
    ]
    assert commands.run("playbook.clean", cwd=project).returncode == 0
    assert commands.run("play", "deploy", "--host", "sandbox", "--list-tasks", cwd=project).returncode == 0
