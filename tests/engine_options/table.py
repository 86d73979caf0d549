"""The history of options in src/sparkwright/engines/ENGINE/option_history.json, made from the stored releases.

python -m tests.engine_options.table        # writes it for both engines
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.engine_options import kept
from tests.engine_options.kept import Option

ENGINES = Path(__file__).parents[2] / "src" / "sparkwright" / "engines"
NAMES = ("sglang", "llama_cpp")


def render_table(engine: str) -> str:
    """Return the table of an engine, one row per line."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in iter_rows(engine))
    return f'{{\n "releases": {json.dumps(kept.list_releases(engine))},\n "options": {{\n{lines}\n }}\n}}\n'


def iter_rows(engine: str) -> Iterator[tuple[str, str]]:
    """Yield name and row of each option that a release lacks, sorted by name; engines/options.py explains a row."""
    releases = kept.list_releases(engine)
    successors = json.loads((ENGINES / engine / "options.json").read_text())["successors"]
    releases_by_name: dict[str, list[tuple[int, Option]]] = {}
    for number, release in enumerate(releases):
        for option in kept.load(engine, release):
            for name in option.names:
                releases_by_name.setdefault(name, []).append((number, option))
    for name, occurrences in sorted(releases_by_name.items()):
        if len(occurrences) == len(releases):
            continue
        first, last = occurrences[0][0], occurrences[-1][0]
        span = f"{releases[first] if first else ''}..{releases[last] if last < len(releases) - 1 else ''}"
        option = occurrences[-1][1]
        instead = successors.get(name, {}).get("instead", option.instead)
        yield name, f"{option.kind} {span}{f' -> {instead}' if instead and last < len(releases) - 1 else ''}"


def list_changes(old: Sequence[Option], new: Sequence[Option]) -> Iterator[str]:
    """Yield the changes between two releases, one line each."""
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


def write_table(engine: str) -> None:
    """Write the table of an engine."""
    (ENGINES / engine / "option_history.json").write_text(render_table(engine))


if __name__ == "__main__":
    for name in NAMES:
        write_table(name)
