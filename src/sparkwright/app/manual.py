"""Serve the documentation to programs: pages of docs/, modules and rules by name, and full-text search."""

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
from sparkwright.program import rewrite_commands
from sparkwright.project import shipped_files
from sparkwright.project.documents.validation import suggest_name
from sparkwright.protocol import signature
from sparkwright.protocol.signature import Argument, ArgumentType

MAX_PAGE_CHARS = 60_000
#: maximum number of sections in a search result
MAX_RESULTS = 20
#: length of a section's excerpt in a search result, in characters
EXCERPT_CHARS = 300
_HEADING_PATTERN = re.compile(r"^#{1,4} +(.+)$", re.MULTILINE)
_CODE_BLOCK_PATTERN = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)", re.MULTILINE | re.DOTALL)


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the pages of docs/ by file name."""
    docs_folder = shipped_files.shipped_folder() / "docs"
    paths = sorted(
        [*docs_folder.glob("*.md"), *(docs_folder / "files").glob("*.md")],
        key=lambda path: (path.parent.name, path.stem),
    )
    return {path.stem: rewrite_commands(path.read_text(encoding="utf-8")) for path in paths if path.stem != "README"}


def title(page: str) -> str:
    """Return the first heading of a page."""
    return next(_HEADING_PATTERN.finditer(page))[1]


def index() -> str:
    """Return a list of all pages, modules and rules, with their titles."""
    page_lines = "\n".join(f"{name}: {title(text)}" for name, text in pages().items())
    rule_lines = "\n".join(f"{name}: {text}" for name, text in sorted(findings.rule_titles().items()))
    return f"Pages\n\n{page_lines}\n\nModules\n\n{module_index()}\n\nRules\n\n{rule_lines}\n"


def topic(name: str) -> str:
    """Return the text of a page, module or rule; `page#section` selects a section with its subsections.

    Raises Refused if there is no such page or section.
    """
    page_name, _, section = name.partition("#")
    text = "\n\n".join(_find_texts(page_name))
    if not text:
        known_names = {*pages(), *registry.NAMES, *findings.rule_titles()}
        raise Refused(f"no page, module or rule is called {page_name!r}.", fix=suggest_name(page_name, known_names))
    if section:
        text = _extract_section(text, page_name, section)
    return (
        text
        if len(text) <= MAX_PAGE_CHARS
        else f"{text[:MAX_PAGE_CHARS]}… ({len(text) - MAX_PAGE_CHARS} more characters; request one section)"
    )


def search(query: str) -> list[dict[str, str]]:
    """Return the sections that contain all words of a query; sections with more of them in their name or heading come first."""
    terms = query.lower().split()
    hits = []
    for name in dict.fromkeys([*pages(), *registry.NAMES, *findings.rule_titles()]):
        for page in _find_texts(name):
            for heading, text in _split_sections(page):
                if all(word in f"{name} {heading} {text}".lower() for word in terms):
                    title_matches = sum(word in f"{name} {heading}".lower() for word in terms)
                    hits.append((title_matches, name, heading, text))
    hits.sort(key=lambda hit: -hit[0])
    return [
        {
            "topic": f"{name}#{_slug(heading)}" if name in pages() else name,
            "title": heading,
            "text": _excerpt(text, terms),
        }
        for _, name, heading, text in hits[:MAX_RESULTS]
    ]


def _find_texts(name: str) -> Iterator[str]:
    """Yield the texts of the page, module and rules with this name; several may share it, for example `doctor`."""
    if name in pages():
        yield pages()[name]
    if name in registry.NAMES:
        yield module_page(name)
    yield from map(findings.format_rule, findings.find_rules(name))


def _find_headings(text: str) -> list[re.Match[str]]:
    """Return the headings; lines in code blocks that begin with `#` are not headings."""
    code_spans = [match.span() for match in _CODE_BLOCK_PATTERN.finditer(text)]
    return [
        match
        for match in _HEADING_PATTERN.finditer(text)
        if not any(start <= match.start() < end for start, end in code_spans)
    ]


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    headings = _find_headings(text)
    if not headings:
        yield text.partition("\n")[0], text
    ends = [*(match.start() for match in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):
        yield heading[1], text[heading.end() : end].strip()


def _extract_section(text: str, page: str, slug: str) -> str:
    headings = _find_headings(text)
    slugs = [_slug(match[1]) for match in headings]
    if slug not in slugs:
        raise Refused(f"{page} has no section {slug!r}.", fix=suggest_name(slug, slugs))
    section_heading = headings[slugs.index(slug)]
    depth = len(section_heading[0]) - len(section_heading[0].lstrip("#"))
    later_headings = headings[slugs.index(slug) + 1 :]
    end = next(
        (match.start() for match in later_headings if len(match[0]) - len(match[0].lstrip("#")) <= depth), len(text)
    )
    return text[section_heading.start() : end]


def _slug(heading: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _excerpt(text: str, terms: list[str]) -> str:
    """Return an excerpt of a text that begins at the line with the first matching word."""
    positions = [position for word in terms if (position := text.lower().find(word)) >= 0]
    start = text.rfind("\n", 0, max(1, min(positions, default=0))) + 1
    return " ".join(text[start : start + EXCERPT_CHARS].split())


def module_index() -> str:
    """Return a list of all modules, with the first sentence of each."""
    width = max(map(len, registry.NAMES))
    texts = {
        name: " ".join((inspect.getdoc(registry.load(name)) or "").split("\n\n")[0].split()) for name in registry.NAMES
    }
    return "\n".join(f"{name:<{width}}  {text.split('. ')[0].rstrip('.')}." for name, text in texts.items())


def module_page(name: str) -> str:
    """Return the documentation of a module as markdown. Raises Refused, with the nearest name, for an unknown module."""
    try:
        module_class = registry.load(name)
    except KeyError:
        raise Refused(f"no module is called {name!r}.", fix=suggest_name(name, registry.NAMES)) from None
    arguments = zip(
        signature.from_args_type(module_class.Args).items(), dataclasses.fields(module_class.Args), strict=True
    )
    rows = [_argument_row(argument_name, argument, field) for (argument_name, argument), field in arguments]
    header = ["| argument | type | default | meaning |", "|---|---|---|---|"] if rows else ["It takes no arguments."]
    return "\n".join([f"# {name}", "", inspect.getdoc(module_class) or "", "", *header, *rows, ""])


def _argument_row(name: str, argument: Argument, field: dataclasses.Field[Any]) -> str:
    default = "required" if argument.required else f"`{_format_default(field)}`"
    return f"| `{name}` | {_format_type(argument.expected_type)} | {default} | {argument.doc} |"


def _format_default(field: dataclasses.Field[Any]) -> str:
    """Return a default value in YAML."""
    factory: Any = field.default_factory
    value = field.default if field.default is not dataclasses.MISSING else factory()
    return json.dumps(value) if value in (None, "") or isinstance(value, bool) else str(value)


def _format_type(type_description: ArgumentType) -> str:
    kind, *details = type_description
    if kind == "one of":
        return " or ".join(f"`{value}`" for value in details[0])
    if kind == "or":
        return " or ".join(_format_type(alternative) for alternative in details[0] if alternative != ["null"])
    return f"list of {_format_type(details[0])}" if kind == "list" else kind
