"""Shipped playbooks, parts and templates: found where the project has none, ejected, compared and merged."""

import hashlib
import shutil
from pathlib import Path

import pytest

from sparkwright.app.plans import server_context
from sparkwright.errors import Refused
from sparkwright.project import ejection, playbook, shipped_files, starter
from sparkwright.project.folder import Project
from sparkwright.protocol import expressions

PART = "playbooks/parts/prove.yml"
TOP = Path(__file__).parents[2]


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped files of another version, which a test may change. What they were counts as copied by an earlier `init`."""
    top = tmp_path / "package"
    for folder in (*starter.STARTER_FOLDERS, *shipped_files.SHIPPED_FOLDERS):
        shutil.copytree(shipped_files.shipped_folder() / folder, top / folder)
    shutil.copy(shipped_files.shipped_folder() / "tasks.py", top)
    known = {name: [*ids] for name, ids in ejection.load_earlier_copies().items()}
    for path in (
        path for folder in shipped_files.SHIPPED_FOLDERS for path in (top / folder).rglob("*") if path.is_file()
    ):
        raw = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()
        known.setdefault(path.relative_to(top).as_posix(), []).append(blob[: ejection.HASH_CHARS])
    monkeypatch.setattr(ejection, "load_earlier_copies", lambda: known)
    monkeypatch.setattr(shipped_files, "shipped_folder", lambda: top)
    return top


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    starter.write_starter(root)
    monkeypatch.chdir(root)
    return root


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def dump_playbook(project: Path, book: str) -> str:
    return str(playbook.load(Project(project).playbook(book), project).plays[0].file.model_dump())


def test_a_projects_part_takes_the_place_of_the_shipped_one_in_every_shipped_playbook(project: Path) -> None:
    before = {book: dump_playbook(project, book) for book in ("deploy", "restart", "verify")}
    assert ejection.eject(project, PART).state == "ejected"
    assert {book: dump_playbook(project, book) for book in before} == before, "a copy changes nothing"
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ask it for a token\n")
    assert ["Ask it for a token" in dump_playbook(project, book) for book in before] == [True, True, False]
    # a part that a shipped part includes, from a folder of its own
    ejection.eject(project, "playbooks/parts/cold.yml")
    replace_text(project / "playbooks/parts/cold.yml", "\n- ", "\n- name: Ours\n  facts:\n\n- ")
    assert "Ours" in dump_playbook(project, "deploy")


def test_a_playbook_of_the_projects_own_includes_shipped_parts(project: Path) -> None:
    (project / "playbooks").mkdir()
    book = project / "playbooks/drain.yml"
    book.write_text("- hosts: all\n  tasks:\n    - include: parts/return.yml\n")
    assert "parts/return.yml" in dump_playbook(project, "drain")
    book.write_text("- hosts: all\n  tasks:\n    - include: parts/retrun.yml\n")
    with pytest.raises(Refused, match=r"playbooks/drain\.yml:3: no file .*Did you mean `parts/return.yml`"):
        playbook.load(book, project)


def test_a_mistake_in_a_shipped_file_is_shown_by_the_files_name(project: Path, newer: Path) -> None:
    replace_text(newer / PART, "- name: Check that it generates\n", "- name: {\n")
    with pytest.raises(Refused, match=r"^playbooks/parts/prove\.yml:\d+: "):
        playbook.load(Project(project).playbook("deploy"), project)


@pytest.mark.parametrize("name", [name for name in shipped_files.list_ejectable() if name.startswith("templates/")])
def test_the_note_in_a_template_is_not_rendered(name: str, project: Path) -> None:
    ejection.eject(project, name)
    text, shipped = (project / name).read_text(), (shipped_files.shipped_folder() / name).read_text()
    assert "ejected from sparkwright" in text
    assert text.endswith(shipped) and expressions.render(text.removesuffix(shipped) + "#!/bin/sh", {}) == "#!/bin/sh"


def test_what_both_sides_changed_in_different_places_is_merged(project: Path, newer: Path) -> None:
    ejection.eject(project, PART)
    replace_text(project / PART, "- name: Check that it generates\n", "- name: Ask it for a token\n")
    assert ejection.file_state(project, PART) == ejection.FileState(
        PART, "changed", ejection.__version__, is_outdated=False
    )
    (newer / PART).write_text((newer / PART).read_text() + "\n- name: New in this version\n  facts:\n")
    assert ejection.file_state(project, PART).is_outdated
    texts = ejection.compare(project, PART)
    assert "+- name: New in this version" in texts.diff(own=False)
    assert "+- name: Ask it for a token" in texts.diff(own=True)
    assert texts.conflicts == []
    ejection.write_ejected(project, PART, texts.merge())
    merged = (project / PART).read_text()
    assert "Ask it for a token" in merged and merged.endswith("New in this version\n  facts:\n")
    assert not ejection.file_state(project, PART).is_outdated


def test_a_line_that_both_sides_changed_is_a_conflict(project: Path, newer: Path) -> None:
    ejection.eject(project, PART)
    for top, title in ((project, "Ask it for a token"), (newer, "Check for a token")):
        replace_text(top / PART, "- name: Check that it generates\n", f"- name: {title}\n")
    (conflict,) = ejection.compare(project, PART).conflicts
    assert conflict.lines == ("- name: Ask it for a token\n",)
    same = (newer / PART).read_text().replace("Check for a token", "Ask it for a token")
    (newer / PART).write_text(same)
    assert ejection.compare(project, PART).conflicts == [], "both made the same change"


@pytest.mark.parametrize(
    ("before", "own", "shipped", "merged"),
    [
        ("a\nb\nc\nd\n", "a\nb\nc\nD\n", "A\nb\nc\nd\n", "A\nb\nc\nD\n"),
        ("a\nb\nc\nd\n", "a\nc\nd\n", "a\nb\nc\nd\ne\n", "a\nc\nd\ne\n"),
        ("a\nb\nc\n", "x\na\nb\nc\n", "a\nb\nc", "x\na\nb\nc"),
        ("a\nb\n", "a\nb\nx\n", "a\nb\ny\n", None),
        ("a\nb\nc\n", "a\nB\nc\n", "a\nb\nC\n", None),
    ],
)
def test_merging(before: str, own: str, shipped: str, merged: str | None) -> None:
    texts = ejection.Comparison("a", "1", before, own, shipped)
    assert (None if texts.conflicts else texts.merge()) == merged


def test_a_file_that_is_there_is_not_replaced(project: Path) -> None:
    (project / "playbooks").mkdir()
    (project / "playbooks/deploy.yml").write_text("- hosts: all\n")
    with pytest.raises(Refused, match="playbooks/deploy.yml exists in this project"):
        ejection.eject(project, "playbooks/deploy.yml")
    assert (project / "playbooks/deploy.yml").read_text() == "- hosts: all\n"
    with pytest.raises(Refused, match="Did you mean `parts/prove`"):
        ejection.resolve_name(project, "parts/prov")


def test_the_checkout_itself_is_left_alone(newer: Path) -> None:
    for act in (lambda: ejection.eject(newer, PART), lambda: ejection.refuse_own_checkout(newer)):
        with pytest.raises(Refused, match="the shipped ones themselves"):
            act()


def test_copies_of_an_earlier_version_are_known_by_their_hash(project: Path) -> None:
    old = {name: TOP / "tests/data/earlier" / name for name in (PART, "templates/client.j2")}
    for name, path in old.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, project / name)
    assert [name for name, kept in ejection.find_unchanged_copies(project) if not kept] == sorted(old)
    (project / PART).write_text((project / PART).read_text() + "# ours\n")
    assert [name for name, _ in ejection.find_unchanged_copies(project)] == ["templates/client.j2"]
    assert ejection.file_state(project, PART).state == "changed"


def test_what_a_changed_playbook_includes_stays_with_it_unless_it_is_as_shipped(project: Path, newer: Path) -> None:
    shutil.copytree(newer / "playbooks", project / "playbooks")
    assert {kept for _, kept in ejection.find_unchanged_copies(project)} == {""}
    (project / "playbooks/deploy.yml").write_text((project / "playbooks/deploy.yml").read_text() + "# ours\n")
    assert {kept for _, kept in ejection.find_unchanged_copies(project)} == {""}, (
        "all its parts are as this version ships them"
    )
    cold = "playbooks/parts/cold.yml"  # parts/prove.yml includes it
    (newer / cold).unlink()
    replace_text(newer / PART, "- name: Check that it generates\n", "- name: Check for a token\n")
    reason = {name: why for name, why in ejection.find_unchanged_copies(project) if why}
    assert sorted(reason) == [cold, PART], "restart.yml includes them too, and is as shipped"
    assert reason[cold] == "playbooks/deploy.yml includes it, and this version's file differs"


def test_copies_that_include_what_stays_stay_too_if_they_are_not_as_shipped(project: Path, newer: Path) -> None:
    shutil.copytree(newer / "playbooks", project / "playbooks")
    (project / "playbooks/deploy.yml").write_text((project / "playbooks/deploy.yml").read_text() + "# ours\n")
    replace_text(newer / PART, "- name: Check that it generates\n", "- name: Check for a token\n")
    replace_text(newer / "playbooks/restart.yml", "- name: ", "- name: A ")
    shutil.copytree(newer / "templates", project / "templates")
    replace_text(newer / "templates/client.j2", "OpenAI", "Open AI")
    reason = {name: why for name, why in ejection.find_unchanged_copies(project) if why}
    assert reason["playbooks/restart.yml"] == f"it includes {PART}, which is kept"
    assert sorted(reason) == [PART, "playbooks/restart.yml"]


def test_schemas_stay_while_a_first_line_names_them_and_links_are_not_followed(project: Path) -> None:
    shutil.copytree(shipped_files.shipped_folder() / "schemas", project / "schemas")
    assert {kept for _, kept in ejection.find_unchanged_copies(project)} == {""}
    replace_text(project / "hosts/spark1.yml", "../.sparkwright/schemas/", "../schemas/")
    assert (
        dict(ejection.find_unchanged_copies(project))["schemas/host.json"]
        == "the first line of hosts/spark1.yml refers to it"
    )
    (project / "templates").symlink_to(shipped_files.shipped_folder() / "templates")
    assert not [name for name, _ in ejection.find_unchanged_copies(project) if name.startswith("templates/")]


def test_a_part_that_is_ejected_is_in_the_next_restart_plan(project: Path) -> None:
    """The laptop keeps restart plans; a new file of the project must not leave an old one in use."""
    before = server_context._digest_inputs(project, {})
    ejection.eject(project, PART)
    assert server_context._digest_inputs(project, {}) != before
