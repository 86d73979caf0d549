"""The options of every release that was asked, kept as text: one file a release, one line an option."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

DATA = Path(__file__).parents[1] / "data" / "engine-options"


@dataclass(frozen=True)
class Option:
    """An option of one release."""

    #: its long names, the usual one first
    names: tuple[str, ...]
    #: as in the options.json of its engine
    kind: str
    #: the option that the release itself names in its place, as NAME or NAME=VALUE; "" for none
    instead: str = ""

    def line(self) -> str:
        """Return it as it is kept."""
        return " ".join([*self.names, f"({self.kind})", *(["->", self.instead] if self.instead else [])])


def load(engine: str, release: str) -> list[Option]:
    """Return the options of a release that was kept."""
    return [_option(line) for line in (DATA / engine / f"{release}.txt").read_text().splitlines()]


def save(engine: str, release: str, options: Iterable[Option]) -> None:
    """Keep the options of a release."""
    (DATA / engine).mkdir(parents=True, exist_ok=True)
    lines = sorted(option.line() for option in options)
    (DATA / engine / f"{release}.txt").write_text("\n".join(lines) + "\n")


def releases(engine: str) -> list[str]:
    """Return the releases that were kept, oldest first."""
    return sorted((path.stem for path in (DATA / engine).glob("*.txt")), key=lambda name: Version(name.lstrip("b")))


def _option(line: str) -> Option:
    written, _, instead = line.partition(" -> ")
    *names, kind = written.split()
    return Option(tuple(names), kind.strip("()"), instead)
