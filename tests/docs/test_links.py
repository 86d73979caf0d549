"""Every relative link in the documentation leads to an existing file, and its anchor to a heading there."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
CODE = re.compile(r"^(```|~~~).*?^\1|^(?: {4}|\t).*?$", re.S | re.M)
INLINE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.M)


def list_pages() -> list[Path]:
    result = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True, check=False)
    paths = [TOP / name for name in result.stdout.splitlines()] or [TOP / "README.md", *(TOP / "docs").rglob("*.md")]
    return [path for path in paths if path.exists()]


def strip_code(path: Path) -> str:
    """Return a page without code, in which brackets and # mean something else."""
    return INLINE.sub(lambda match: "x" * len(match[0]), CODE.sub("", path.read_text()))


def find_anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    names: set[str] = set()
    for title in HEADING.findall(CODE.sub("", path.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(next(anchor for anchor in (name, *(f"{name}-{n}" for n in range(1, 99))) if anchor not in names))
    return names


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(TOP)))
def test_links_of_a_page_exist(page: Path) -> None:
    dead = []
    for link in LINK.findall(strip_code(page)):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue  # an address on the web
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in find_anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_in_the_index() -> None:
    links = LINK.findall((TOP / "docs/README.md").read_text())
    linked = {(TOP / "docs" / link.partition("#")[0]).resolve() for link in links}
    assert [path.name for path in (TOP / "docs").glob("*.md") if path.resolve() not in linked] == ["README.md"]


def test_tests_named_on_the_security_page_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", (TOP / "docs/security.md").read_text()))
    assert named
    assert {path for path in named if not (TOP / path).exists()} == set()
