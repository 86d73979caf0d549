"""Shipped playbooks, parts and templates: used if the project has none, ejected, compared and merged."""

import hashlib
import shutil
from pathlib import Path

import pytest

from sparkwright.app.plans import server_context
from sparkwright.errors import Refused
from sparkwright.project import ejection, playbook, shipped_files, starter
from sparkwright.project.folder import Project
from sparkwright.protocol import expressions
from sparkwright.version import __version__

PART = "playbooks/parts/prove.yml"
#: the name of the first task of PART
CHECK = "- name: Check that it generates\n"
TOP = Path(__file__).parents[2]


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped files, for changes by a newer version; the originals count as copied by an earlier `init`."""
    top = tmp_path / "package"
    for folder in (*starter.STARTER_FOLDERS, *shipped_files.SHIPPED_FOLDERS):
        shutil.copytree(shipped_files.shipped_folder() / folder, top / folder)
    shutil.copy(shipped_files.shipped_folder() / "tasks.py", top)
    known = {name: [*ids] for name, ids in ejection.load_earlier_copies().items()}
    shipped = (path for folder in shipped_files.SHIPPED_FOLDERS for path in (top / folder).rglob("*"))
    for path in shipped:
        if not path.is_file():
            continue
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


def append_text(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def find_reasons(project: Path) -> dict[str, str]:
    """Return why copies are kept, by file."""
    return {name: reason for name, reason in ejection.find_unchanged_copies(project) if reason}


def dump_play(project: Path, book: str) -> str:
    return str(playbook.load(Project(project).playbook(book), project).plays[0].file.model_dump())


def test_ejected_part_replaces_the_shipped_one(project: Path) -> None:
    before = {book: dump_play(project, book) for book in ("deploy", "restart", "verify")}
    assert ejection.eject(project, PART).state == "ejected"
    assert {book: dump_play(project, book) for book in before} == before
    replace_text(project / PART, CHECK, "- name: Request a token\n")
    assert ["Request a token" in dump_play(project, book) for book in before] == [True, True, False]
    # shipped parts include this one from another folder
    ejection.eject(project, "playbooks/parts/cold.yml")
    replace_text(project / "playbooks/parts/cold.yml", "\n- ", "\n- name: Ours\n  facts:\n\n- ")
    assert "Ours" in dump_play(project, "deploy")


def test_own_playbook_includes_shipped_parts(project: Path) -> None:
    (project / "playbooks").mkdir()
    book = project / "playbooks/drain.yml"
    book.write_text("- hosts: all\n  tasks:\n    - include: parts/return.yml\n")
    assert "parts/return.yml" in dump_play(project, "drain")
    book.write_text("- hosts: all\n  tasks:\n    - include: parts/retrun.yml\n")
    with pytest.raises(Refused, match=r"playbooks/drain\.yml:3: no file .*Did you mean `parts/return.yml`"):
        playbook.load(book, project)


def test_mistake_in_a_shipped_file_names_the_file(project: Path, newer: Path) -> None:
    replace_text(newer / PART, CHECK, "- name: {\n")
    with pytest.raises(Refused, match=r"^playbooks/parts/prove\.yml:\d+: "):
        playbook.load(Project(project).playbook("deploy"), project)


@pytest.mark.parametrize("name", [name for name in shipped_files.list_ejectable() if name.startswith("templates/")])
def test_note_in_an_ejected_template_is_not_rendered(name: str, project: Path) -> None:
    ejection.eject(project, name)
    text, shipped = (project / name).read_text(), (shipped_files.shipped_folder() / name).read_text()
    assert "ejected from sparkwright" in text
    assert text.endswith(shipped) and expressions.render(text.removesuffix(shipped) + "#!/bin/sh", {}) == "#!/bin/sh"


def test_changes_in_different_places_are_merged(project: Path, newer: Path) -> None:
    ejection.eject(project, PART)
    replace_text(project / PART, CHECK, "- name: Request a token\n")
    changed = ejection.FileState(PART, "changed", __version__, is_outdated=False)
    assert ejection.file_state(project, PART) == changed
    append_text(newer / PART, "\n- name: New in this version\n  facts:\n")
    assert ejection.file_state(project, PART).is_outdated
    texts = ejection.compare(project, PART)
    assert "+- name: New in this version" in texts.diff(of_project=False)
    assert "+- name: Request a token" in texts.diff(of_project=True)
    assert texts.conflicts == []
    ejection.write_ejected(project, PART, texts.merge())
    merged = (project / PART).read_text()
    assert "Request a token" in merged and merged.endswith("New in this version\n  facts:\n")
    assert not ejection.file_state(project, PART).is_outdated


def test_changes_of_the_same_line_conflict(project: Path, newer: Path) -> None:
    ejection.eject(project, PART)
    for top, title in ((project, "Request a token"), (newer, "Check for a token")):
        replace_text(top / PART, CHECK, f"- name: {title}\n")
    (conflict,) = ejection.compare(project, PART).conflicts
    assert conflict.lines == ("- name: Request a token\n",)
    replace_text(newer / PART, "Check for a token", "Request a token")
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
def test_merge_of_two_changes(before: str, own: str, shipped: str, merged: str | None) -> None:
    texts = ejection.Comparison("a", "1", before, own, shipped)
    assert (None if texts.conflicts else texts.merge()) == merged


def test_existing_file_is_not_replaced(project: Path) -> None:
    (project / "playbooks").mkdir()
    (project / "playbooks/deploy.yml").write_text("- hosts: all\n")
    with pytest.raises(Refused, match="playbooks/deploy.yml already exists in this project"):
        ejection.eject(project, "playbooks/deploy.yml")
    assert (project / "playbooks/deploy.yml").read_text() == "- hosts: all\n"
    with pytest.raises(Refused, match="Did you mean `parts/prove`"):
        ejection.resolve_name("parts/prov")


def test_shipped_files_themselves_are_not_ejected(newer: Path) -> None:
    for function in (lambda: ejection.eject(newer, PART), lambda: ejection.refuse_source_checkout(newer)):
        with pytest.raises(Refused, match="the shipped ones themselves"):
            function()


def test_copies_of_earlier_versions_are_recognized_by_hash(project: Path) -> None:
    old = {name: TOP / "tests/data/earlier" / name for name in (PART, "templates/client.j2")}
    for name, path in old.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, project / name)
    assert [name for name, kept in ejection.find_unchanged_copies(project) if not kept] == sorted(old)
    append_text(project / PART, "# ours\n")
    assert [name for name, _ in ejection.find_unchanged_copies(project)] == ["templates/client.j2"]
    assert ejection.file_state(project, PART).state == "changed"


def test_outdated_parts_of_a_changed_playbook_are_kept(project: Path, newer: Path) -> None:
    shutil.copytree(newer / "playbooks", project / "playbooks")
    assert {kept for _, kept in ejection.find_unchanged_copies(project)} == {""}
    append_text(project / "playbooks/deploy.yml", "# ours\n")
    assert find_reasons(project) == {}, "all parts of the playbook are as shipped"
    cold = "playbooks/parts/cold.yml"  # parts/prove.yml includes it
    (newer / cold).unlink()
    replace_text(newer / PART, CHECK, "- name: Check for a token\n")
    reasons = find_reasons(project)
    assert sorted(reasons) == [cold, PART], "restart.yml is as shipped"
    assert reasons[cold] == "playbooks/deploy.yml includes it, and the file that this version ships differs"


def test_outdated_playbooks_that_include_kept_parts_are_kept(project: Path, newer: Path) -> None:
    shutil.copytree(newer / "playbooks", project / "playbooks")
    append_text(project / "playbooks/deploy.yml", "# ours\n")
    replace_text(newer / PART, CHECK, "- name: Check for a token\n")
    replace_text(newer / "playbooks/restart.yml", "- name: ", "- name: A ")
    shutil.copytree(newer / "templates", project / "templates")
    replace_text(newer / "templates/client.j2", "OpenAI", "Open AI")
    reasons = find_reasons(project)
    assert reasons["playbooks/restart.yml"] == f"it includes {PART}, which is kept"
    assert sorted(reasons) == [PART, "playbooks/restart.yml"]


def test_schemas_in_use_are_kept_and_links_are_not_followed(project: Path) -> None:
    shutil.copytree(shipped_files.shipped_folder() / "schemas", project / "schemas")
    assert {kept for _, kept in ejection.find_unchanged_copies(project)} == {""}
    replace_text(project / "hosts/spark1.yml", "../.sparkwright/schemas/", "../schemas/")
    assert find_reasons(project)["schemas/host.json"] == "the first line of hosts/spark1.yml refers to it"
    (project / "templates").symlink_to(shipped_files.shipped_folder() / "templates")
    assert not [name for name, _ in ejection.find_unchanged_copies(project) if name.startswith("templates/")]


def test_ejected_part_invalidates_stored_restart_plans(project: Path) -> None:
    """The laptop stores restart plans; a new file of the project must not leave an old plan in use."""
    before = server_context._digest_inputs(project, {})
    ejection.eject(project, PART)
    assert server_context._digest_inputs(project, {}) != before
