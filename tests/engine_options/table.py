"""The history of options in src/sparkwright/engines/ENGINE/option_history.json, made from the releases that were kept.

python -m tests.engine_options.table        # writes it for both engines
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.engine_options import kept
from tests.engine_options.kept import Option

ENGINES = Path(__file__).parents[2] / "src" / "sparkwright" / "engines"
NAMES = ("sglang", "llama_cpp")


def text(engine: str) -> str:
    """Return the table of an engine, a row a line."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows(engine))
    return f'{{\n "releases": {json.dumps(kept.releases(engine))},\n "options": {{\n{lines}\n }}\n}}\n'


def rows(engine: str) -> Iterator[tuple[str, str]]:
    """Yield name and row of each option that some release lacks, in the alphabet's order; engines/options.py explains a row."""
    releases = kept.releases(engine)
    successors = json.loads((ENGINES / engine / "options.json").read_text())["successors"]
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
        instead = successors.get(name, {}).get("instead", option.instead)
        yield name, f"{option.kind} {span}{f' -> {instead}' if instead and last < len(releases) - 1 else ''}"


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
    """Write the table of an engine."""
    (ENGINES / engine / "option_history.json").write_text(text(engine))


if __name__ == "__main__":
    for each in NAMES:
        write(each)
