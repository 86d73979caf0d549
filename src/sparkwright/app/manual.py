"""The documentation as programs read it: pages of docs/, modules and rules by name, and full-text search."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.app import findings
from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.program import typed
from sparkwright.project import shipped_files
from sparkwright.project.documents.validation import nearest
from sparkwright.protocol import signature
from sparkwright.protocol.signature import Argument, Wanted

#: limits: characters of a page in one answer, sections in a search result, and characters of each section
PAGE, FOUND, EXCERPT = 60_000, 20, 300
_HEADING = re.compile(r"^#{1,4} +(.+)$", re.MULTILINE)
_FENCED = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)", re.MULTILINE | re.DOTALL)


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the pages of docs/ by file name."""
    top = shipped_files.source() / "docs"
    found = sorted([*top.glob("*.md"), *(top / "files").glob("*.md")], key=lambda path: (path.parent.name, path.stem))
    return {path.stem: typed(path.read_text(encoding="utf-8")) for path in found if path.stem != "README"}


def title(page: str) -> str:
    """Return the first heading of a page."""
    return next(_HEADING.finditer(page))[1]


def index() -> str:
    """Return a list of all pages, modules and rules, with their titles."""
    shown = "\n".join(f"{name}: {title(text)}" for name, text in pages().items())
    rules = "\n".join(f"{name}: {text}" for name, text in sorted(findings.rules().items()))
    return f"Pages\n\n{shown}\n\nModules\n\n{module_index()}\n\nRules\n\n{rules}\n"


def topic(name: str) -> str:
    """Return the text of a page, module or rule; `page#section` selects a section with its subsections.

    Raises Refused if there is no such page or section.
    """
    page, _, section = name.partition("#")
    text = "\n\n".join(_named(page))
    if not text:
        known = {*pages(), *registry.NAMES, *findings.rules()}
        raise Refused(f"no page, module or rule is called {page!r}.", fix=nearest(page, known))
    if section:
        text = _section(text, page, section)
    return text if len(text) <= PAGE else f"{text[:PAGE]}… ({len(text) - PAGE} characters more; ask for one section)"


def search(words: str) -> list[dict[str, str]]:
    """Return the sections that contain all of these words, those with the words in the title first."""
    wanted = words.lower().split()
    hits = []
    for name in dict.fromkeys([*pages(), *registry.NAMES, *findings.rules()]):
        for page in _named(name):
            for heading, text in _sections(page):
                if all(word in f"{name} {heading} {text}".lower() for word in wanted):
                    in_title = sum(word in f"{name} {heading}".lower() for word in wanted)
                    hits.append((in_title, name, heading, text))
    hits.sort(key=lambda hit: -hit[0])
    return [
        {
            "topic": f"{name}#{_slug(heading)}" if name in pages() else name,
            "title": heading,
            "text": _around(text, wanted),
        }
        for _, name, heading, text in hits[:FOUND]
    ]


def _named(name: str) -> Iterator[str]:
    """Yield the texts with this name. A page, a module and a rule may share one, as `doctor` does."""
    if name in pages():
        yield pages()[name]
    if name in registry.NAMES:
        yield module_page(name)
    yield from map(findings.rule_text, findings.explained(name))


def _headings(text: str) -> list[re.Match[str]]:
    """Return the headings, ignoring comments in shell code."""
    code = [match.span() for match in _FENCED.finditer(text)]
    return [match for match in _HEADING.finditer(text) if not any(start <= match.start() < end for start, end in code)]


def _sections(text: str) -> Iterator[tuple[str, str]]:
    found = _headings(text)
    if not found:
        yield text.partition("\n")[0], text
    ends = [*(match.start() for match in found[1:]), len(text)]
    for heading, end in zip(found, ends, strict=False):
        yield heading[1], text[heading.end() : end].strip()


def _section(text: str, page: str, wanted: str) -> str:
    found = _headings(text)
    names = [_slug(match[1]) for match in found]
    if wanted not in names:
        raise Refused(f"{page} has no section {wanted!r}.", fix=nearest(wanted, names))
    first = found[names.index(wanted)]
    depth = len(first[0]) - len(first[0].lstrip("#"))
    rest = found[names.index(wanted) + 1 :]
    end = next((match.start() for match in rest if len(match[0]) - len(match[0].lstrip("#")) <= depth), len(text))
    return text[first.start() : end]


def _slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _around(text: str, words: list[str]) -> str:
    """Return the part of a text that begins with the line of the first matching word."""
    places = [at for word in words if (at := text.lower().find(word)) >= 0]
    start = text.rfind("\n", 0, max(1, min(places, default=0))) + 1
    return " ".join(text[start : start + EXCERPT].split())


def module_index() -> str:
    """Return a list of all modules, with the first sentence of each."""
    width = max(map(len, registry.NAMES))
    texts = {
        name: " ".join((inspect.getdoc(registry.load(name)) or "").split("\n\n")[0].split()) for name in registry.NAMES
    }
    return "\n".join(f"{name:<{width}}  {text.split('. ')[0].rstrip('.')}." for name, text in texts.items())


def module_page(name: str) -> str:
    """Return the documentation of a module as markdown. Raises Refused, with the nearest name, for an unknown one."""
    try:
        kind = registry.load(name)
    except KeyError:
        raise Refused(f"no module is called {name!r}.", fix=nearest(name, registry.NAMES)) from None
    named = zip(signature.of(kind.Args).items(), dataclasses.fields(kind.Args), strict=True)
    rows = [_row(argument, takes, field) for (argument, takes), field in named]
    head = ["| argument | type | default | meaning |", "|---|---|---|---|"] if rows else ["It takes no arguments."]
    return "\n".join([f"# {name}", "", inspect.getdoc(kind) or "", "", *head, *rows, ""])


def _row(name: str, takes: Argument, field: dataclasses.Field[Any]) -> str:
    default = "required" if takes.required else f"`{_default(field)}`"
    return f"| `{name}` | {_type(takes.wanted)} | {default} | {takes.doc} |"


def _default(field: dataclasses.Field[Any]) -> str:
    """Return a default value in YAML."""
    factory: Any = field.default_factory
    value = field.default if field.default is not dataclasses.MISSING else factory()
    return json.dumps(value) if value in (None, "") or isinstance(value, bool) else str(value)


def _type(wanted: Wanted) -> str:
    kind, *of = wanted
    if kind == "one of":
        return " or ".join(f"`{value}`" for value in of[0])
    if kind == "or":
        return " or ".join(_type(item) for item in of[0] if item != ["null"])
    return f"list of {_type(of[0])}" if kind == "list" else kind
