"""The history of options in src/sparkwright/engines/ENGINE/option_history.py, made from the releases that were kept.

python -m tests.engine_options.table        # writes it for both engines
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkwright.engines.llama_cpp import options as llama_options
from sparkwright.engines.sglang import options as sglang_options
from tests.engine_options import kept
from tests.engine_options.kept import Option

ENGINES = Path(__file__).parents[2] / "src" / "sparkwright" / "engines"
SUCCESSORS = {"sglang": sglang_options.SUCCESSORS, "llama_cpp": llama_options.SUCCESSORS}
TITLES = {"sglang": "SGLang", "llama_cpp": "llama-server"}
HEAD = '''"""Options of {title} that came or went, by release. Written by `make engine-release ENGINE={engine}`; don't edit.

A row: NAME KIND FIRST..LAST -> INSTEAD. FIRST and LAST are the oldest and the newest release that have it, empty where it is older or
newer than all that were asked. INSTEAD is what the engine names in its place, or SUCCESSORS of options.py. Options without a row are
in every release.
"""

#: the releases whose own parser was asked, oldest first
RELEASES = """
{releases}
"""

ROWS = """
{rows}
"""
'''


def text(engine: str) -> str:
    """Return the module of an engine."""
    releases = kept.releases(engine)
    names = _wrapped(releases)
    return HEAD.format(title=TITLES[engine], engine=engine, releases=names, rows="\n".join(rows(engine)))


def rows(engine: str) -> Iterator[str]:
    """Yield a row for each option that some release lacks, in the alphabet's order."""
    releases = kept.releases(engine)
    found: dict[str, list[tuple[int, Option]]] = {}
    for at, release in enumerate(releases):
        for option in kept.load(engine, release):
            for name in option.names:
                found.setdefault(name, []).append((at, option))
    for name, seen in sorted(found.items()):
        if len(seen) == len(releases):
            continue
        first, last = seen[0][0], seen[-1][0]
        span = f"{releases[first] if first else ''}..{releases[last] if last < len(releases) - 1 else ''}"
        option = seen[-1][1]
        instead = SUCCESSORS[engine].get(name, option.instead)
        yield f"{name} {option.kind} {span}{f' -> {instead}' if instead and last < len(releases) - 1 else ''}"


def changes(old: Sequence[Option], new: Sequence[Option]) -> Iterator[str]:
    """Yield what changed between two releases, a line each."""
    before = {name: option for option in old for name in option.names}
    after = {name: option for option in new for name in option.names}
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"new: --{name} ({after[name].kind})"
        elif name not in after:
            instead = before[name].instead
            yield f"gone: --{name}{f', instead --{instead}' if instead else ''}"
        elif before[name].kind != after[name].kind:
            yield f"--{name}: {before[name].kind} before, {after[name].kind} now"


def write(engine: str) -> None:
    """Write the module of an engine."""
    (ENGINES / engine / "option_history.py").write_text(text(engine))


def _wrapped(words: Sequence[str]) -> str:
    lines = [""]
    for word in words:
        lines = [*lines, word] if len(lines[-1]) + len(word) > 110 else [*lines[:-1], f"{lines[-1]} {word}".strip()]
    return "\n".join(lines)


if __name__ == "__main__":
    for each in SUCCESSORS:
        write(each)
