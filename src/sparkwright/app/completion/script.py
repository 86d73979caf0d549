"""The completion script of a shell, made from its template in this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sparkwright.app.completion.commands import Command, Option, choices
from sparkwright.errors import Refused
from sparkwright.project import shipped_files

HERE = Path(__file__).parent


def of(shell: str, commands: Sequence[Command]) -> str:
    """Return the completion script for a shell. Raises Refused for an unknown shell."""
    if shell not in SHELLS:
        raise Refused(f"no completion for {shell!r}.", fix=f"Shells: {', '.join(SHELLS)}.")
    return SHELLS[shell](commands)


def _posix(template: str) -> Callable[[Sequence[Command]], str]:
    """Return the script of bash or zsh. Both use the same function for the candidates."""

    def made(commands: Sequence[Command]) -> str:
        rows = "\n".join(f"  {command.name}) {_row(command)} ;;" for command in commands)
        values = "\n".join(f"  {kind}) printf '%s\\n' {' '.join(words)} ;;" for kind, words in choices().items())
        parts = {"@NAMES@": " ".join(command.name for command in commands), "@COMMANDS@": rows, "@VALUES@": values}
        return _filled("candidates.sh", parts) + _filled(template, {})

    return made


def _row(command: Command) -> str:
    flags = [option.flags[-1] for option in command.options]
    takes = [f"{flag}:{option.takes}" for option in command.options if option.takes for flag in option.flags]
    return f"flags='{' '.join(flags)}' takes=' {' '.join(takes)} ' word='{command.word}'"


def _fish(commands: Sequence[Command]) -> str:
    lines = []
    for command in commands:
        lines.append(f"complete -c sparkwright -n __fish_use_subcommand -a {command.name} -d {_quoted(command.about)}")
        seen = f"complete -c sparkwright -n '__fish_seen_subcommand_from {command.name}'"
        if command.word:
            lines.append(f"{seen} {_fish_values(command.word)}")
        lines += [f"{seen} {_fish_option(option)}" for option in command.options]
    values = "\n".join(
        f"        case {kind}\n            printf '%s\\n' {' '.join(words)}" for kind, words in choices().items()
    )
    return _filled("completion.fish", {"@COMMANDS@": "\n".join(lines), "@VALUES@": values})


def _fish_option(option: Option) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    values = f" -r {_fish_values(option.takes)}" if option.takes else ""
    return f"{' '.join(names)}{values} -d {_quoted(option.about)}"


def _fish_values(kind: str) -> str:
    return "-F" if kind == "files" else f"-f -a '(__sparkwright_values {kind})'"


def _quoted(text: str) -> str:
    """Quote text for fish, which has two escapes between single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _filled(template: str, parts: dict[str, str]) -> str:
    text = (HERE / template).read_text()
    playbooks = {path.stem for path in (shipped_files.source() / "playbooks").glob("*.yml")}
    for name, value in {**parts, "@PLAYBOOKS@": " ".join(sorted(playbooks))}.items():
        text = text.replace(name, value)
    return text


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {
    "bash": _posix("completion.bash"),
    "zsh": _posix("completion.zsh"),
    "fish": _fish,
}
