"""`playbook.eject`, `playbook.update`, `playbook.clean`, and `lint` of ejected files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwright
from sparkwright.project import shipped_files, starter
from sparkwright.version import __version__
from tests import commands
from tests.project.test_ejection import replace_text

PART = "playbooks/parts/prove.yml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    starter.write_starter(tmp_path / "project")
    return tmp_path / "project"


class InstalledCopy:
    """sparkwright as a wheel installs it, with shipped files that a test may change."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.shipped = site / "sparkwright/starter"
        self.shipped.mkdir(parents=True)
        for path in Path(sparkwright.__file__).parent.iterdir():
            if path.name != "starter":  # of a wheel
                (self.shipped.parent / path.name).symlink_to(path)
        for folder in (*starter.STARTER_FOLDERS, *shipped_files.SHIPPED_FOLDERS):
            shutil.copytree(shipped_files.shipped_folder() / folder, self.shipped / folder)

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from sparkwright.cli import main; main()"]
        return commands.run_process(*program, *words, cwd=cwd, PYTHONPATH=str(self.site))


@pytest.fixture
def newer(tmp_path: Path) -> InstalledCopy:
    return InstalledCopy(tmp_path / "site")


def test_ejected_part_is_changed_and_merged_after_an_upgrade(project: Path, newer: InstalledCopy) -> None:
    result = newer.run("playbook.eject", "parts/prove", cwd=project)
    assert result.returncode == 0 and result.stdout.startswith(f"{PART}: ")
    again = newer.run("playbook.eject", "parts/prove", cwd=project)
    assert again.returncode == 5 and f"{PART} already exists in this project" in again.stderr
    before = newer.run("lint", cwd=project).stdout
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ask it for a token\n")
    (newer.shipped / PART).write_text((newer.shipped / PART).read_text() + "\n- name: New\n  facts:\n")
    lint = newer.run("lint", cwd=project).stdout
    added = [line for line in lint.splitlines() if line not in before.splitlines()]
    assert added[0].startswith(f"{PART}: the shipped file has changed since sparkwright {__version__}")
    assert "  +- name: New" in added and "  +- name: Ask it for a token" in added
    assert "playbook.update parts/prove` merges the changes to the shipped file into yours" in added[-1]
    (row,) = json.loads(newer.run("lint", "--json", cwd=project).stdout)["playbooks"]
    assert (row["file"], row["state"], row["moved"], row["conflicts"]) == (PART, "changed", True, [])
    assert newer.run("playbook.update", "parts/prove", "--check", cwd=project).returncode == 2
    assert "New" not in (project / PART).read_text()
    assert newer.run("playbook.update", "parts/prove", cwd=project).returncode == 0
    assert {"- name: New", "- name: Ask it for a token"} <= {*(project / PART).read_text().splitlines()}
    assert newer.run("lint", cwd=project).stdout == before


def test_conflict_names_the_line_and_mine_keeps_the_users_text(project: Path, newer: InstalledCopy) -> None:
    newer.run("playbook.eject", "parts/prove", cwd=project)
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ours\n")
    replace_text(newer.shipped / PART, "- name: Check that it generates\n", "- name: Theirs\n")
    before = (project / PART).read_text()
    result = newer.run("playbook.update", "parts/prove", cwd=project)
    line_number = before.splitlines().index("- name: Ours") + 1
    assert result.returncode == 5 and result.stderr.startswith(f"{PART}:{line_number}: ")
    assert (project / PART).read_text() == before
    assert newer.run("playbook.update", "parts/prove", "--mine", cwd=project).returncode == 0
    assert "- name: Ours" in (project / PART).read_text()
    assert "changed since" not in newer.run("lint", cwd=project).stdout


def test_a_file_with_conflict_markers_is_refused_with_its_line(project: Path) -> None:
    commands.run("playbook.eject", "parts/prove", cwd=project)
    (project / PART).write_text(f"{(project / PART).read_text()}<<<<<<< HEAD\n=======\n>>>>>>> other\n")
    line_number = (project / PART).read_text().splitlines().index("<<<<<<< HEAD") + 1
    result = commands.run("playbook.update", "parts/prove", cwd=project)
    assert (result.returncode, result.stdout) == (5, "")
    assert result.stderr.startswith(f"{PART}:{line_number}: unresolved merge conflict.")


def test_list_shows_the_state_of_each_file(project: Path) -> None:
    commands.run("playbook.eject", "client.j2", cwd=project)
    commands.run("playbook.eject", "parts/prove", cwd=project)
    replace_text(project / PART, "- name: ", "- name: My ")
    (project / "playbooks/ours.yml").write_text("- hosts: all\n  tasks: []\n")
    shutil.copy(shipped_files.shipped_folder() / "playbooks/verify.yml", project / "playbooks")
    rows = map(json.loads, commands.run("playbook.eject", "--list", "--json", cwd=project).stdout.splitlines())
    states = {row["file"]: row["state"] for row in rows}
    assert {file: state for file, state in states.items() if state != "shipped"} == {
        "templates/client.j2": "ejected",
        PART: "changed",
        "playbooks/ours.yml": "own",
        "playbooks/verify.yml": "copied",
    }
    assert "shipped" in states.values()


def test_unchanged_copies_of_an_earlier_version_are_removed_after_confirmation(project: Path) -> None:
    for folder in shipped_files.SHIPPED_FOLDERS:
        shutil.copytree(shipped_files.shipped_folder() / folder, project / folder)
    mine = project / "playbooks/verify.yml"
    mine.write_text(mine.read_text() + "# ours\n")
    lint = commands.run("lint", cwd=project)
    assert "An earlier `init` left unchanged copies" in lint.stdout and lint.returncode == 0
    before = sorted(project.rglob("*"))
    for words in (["--check"], []):  # without a terminal there is no confirmation
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
