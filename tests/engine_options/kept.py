"""The stored options of each release: one file per release, one line per option."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

DATA = Path(__file__).parents[1] / "data" / "engine-options"


@dataclass(frozen=True)
class Option:
    """An option of one release."""

    #: long names, the usual name first
    names: tuple[str, ...]
    #: as in the engine's options.json
    kind: str
    #: the replacement named by the release, as NAME or NAME=VALUE; "" if there is none
    instead: str = ""

    def format_line(self) -> str:
        """Return the option as a line of the file."""
        return " ".join([*self.names, f"({self.kind})", *(["->", self.instead] if self.instead else [])])


def load(engine: str, release: str) -> list[Option]:
    """Return the options of a stored release."""
    return [_parse_option(line) for line in (DATA / engine / f"{release}.txt").read_text().splitlines()]


def save(engine: str, release: str, options: Iterable[Option]) -> None:
    """Store the options of a release."""
    (DATA / engine).mkdir(parents=True, exist_ok=True)
    lines = sorted(option.format_line() for option in options)
    (DATA / engine / f"{release}.txt").write_text("\n".join(lines) + "\n")


def list_releases(engine: str) -> list[str]:
    """Return the stored releases, oldest first."""
    return sorted((path.stem for path in (DATA / engine).glob("*.txt")), key=lambda name: Version(name.lstrip("b")))


def _parse_option(line: str) -> Option:
    written, _, instead = line.partition(" -> ")
    *names, kind = written.split()
    return Option(tuple(names), kind.strip("()"), instead)
