"""Shell completion scripts, rendered from the templates in this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.defaults import HEAL_MODES
from sparkwright.engines import engine, recipe_rules
from sparkwright.errors import Refused
from sparkwright.modules.registry import NAMES
from sparkwright.project import shipped_files
from sparkwright.sandbox.faults import FAULTS, MEMBER_FAULTS

TEMPLATE_FOLDER = Path(__file__).parent
#: kinds of values that the shell reads from the project's folder
HOSTS_KIND, RECIPES_KIND, PLAYBOOKS_KIND = "hosts", "recipes", "playbooks"
FILES_KIND, TEXT_KIND = "files", "text"

#: kind of value, by option or by command and option; other options take free text
OPTION_KINDS = {
    **dict.fromkeys(("host", "from", "images.copy to", "models.copy to"), HOSTS_KIND),
    **dict.fromkeys(("recipe", "a", "b", "switch to"), RECIPES_KIND),
    **dict.fromkeys(("file", "dataset", "to"), FILES_KIND),
    "heal": "heal",
}
#: kind of the word after a command
ARGUMENT_KINDS = {
    "play": PLAYBOOKS_KIND,
    **dict.fromkeys(("playbook.eject", "playbook.update"), "shipped"),
    "schema": "schemas",
    "docs.module": "modules",
    "explain": "rules",
    "sandbox.fault": "faults",
    "completion": "shells",
    **dict.fromkeys(
        ("init", "model.inspect", "bench.compare", "bench.report", "bench.import", "recipe.import"), FILES_KIND
    ),
    "recipe.export": RECIPES_KIND,
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    #: for example `--host` and `-H`
    flags: tuple[str, ...]
    description: str
    #: empty for a switch
    value_kind: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options."""

    name: str
    description: str
    options: tuple[Option, ...]
    #: kind of the word after the command; empty if it has no such word
    argument_kind: str = ""


def option_value_kind(command: str, option: str, kind: type) -> str:
    """Return the kind of an option's values; empty for a switch."""
    name = option.replace("_", "-")
    return "" if kind is bool else OPTION_KINDS.get(f"{command} {name}") or OPTION_KINDS.get(name) or TEXT_KIND


def static_values() -> dict[str, list[str]]:
    """Return the values of the kinds that do not depend on a project."""
    return {
        "schemas": ["groups", "host", "lock", "playbook", "recipe", "results"],
        "modules": list(NAMES),
        "shipped": [shipped_files.short_name(name) for name in shipped_files.list_ejectable()],
        "rules": sorted(
            {
                *(name for rules in recipe_rules.RULES for name in rules),
                *(name for engine in engine.list_supported() for rules in engine.advice.RULES for name in rules),
            }
        ),
        "faults": [*FAULTS, *MEMBER_FAULTS, "none"],
        "shells": ["bash", "zsh", "fish"],
        "heal": list(HEAL_MODES),
    }


def render_script(shell: str, commands: Sequence[Command]) -> str:
    """Return the completion script for a shell. Raises Refused for an unknown shell."""
    if shell not in SHELLS:
        raise Refused(f"no completion for {shell!r}.", fix=f"Shells: {', '.join(SHELLS)}.")
    return SHELLS[shell](commands)


def _posix_renderer(template: str) -> Callable[[Sequence[Command]], str]:
    """Return a function that renders the script for bash or zsh, which share candidates.sh."""

    def render(commands: Sequence[Command]) -> str:
        rows = "\n".join(f"  {command.name}) {_command_row(command)} ;;" for command in commands)
        values = "\n".join(f"  {kind}) printf '%s\\n' {' '.join(words)} ;;" for kind, words in static_values().items())
        substitutions = {
            "@NAMES@": " ".join(command.name for command in commands),
            "@COMMANDS@": rows,
            "@VALUES@": values,
        }
        return _render_template("candidates.sh", substitutions) + _render_template(template, {})

    return render


def _command_row(command: Command) -> str:
    flags = [option.flags[-1] for option in command.options]
    value_kinds = [
        f"{flag}:{option.value_kind}" for option in command.options if option.value_kind for flag in option.flags
    ]
    return f"flags='{' '.join(flags)}' value_kinds=' {' '.join(value_kinds)} ' argument_kind='{command.argument_kind}'"


def _render_fish(commands: Sequence[Command]) -> str:
    lines = []
    for command in commands:
        lines.append(
            f"complete -c sparkwright -n __fish_use_subcommand -a {command.name} -d {_quote_for_fish(command.description)}"
        )
        condition = f"complete -c sparkwright -n '__fish_seen_subcommand_from {command.name}'"
        if command.argument_kind:
            lines.append(f"{condition} {_format_fish_values(command.argument_kind)}")
        lines += [f"{condition} {_format_fish_option(option)}" for option in command.options]
    values = "\n".join(
        f"        case {kind}\n            printf '%s\\n' {' '.join(words)}" for kind, words in static_values().items()
    )
    return _render_template("completion.fish", {"@COMMANDS@": "\n".join(lines), "@VALUES@": values})


def _format_fish_option(option: Option) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    values = f" -r {_format_fish_values(option.value_kind)}" if option.value_kind else ""
    return f"{' '.join(names)}{values} -d {_quote_for_fish(option.description)}"


def _format_fish_values(kind: str) -> str:
    return "-F" if kind == "files" else f"-f -a '(__sparkwright_values {kind})'"


def _quote_for_fish(text: str) -> str:
    """Quote text for fish, which escapes only backslashes and quotes inside single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _render_template(template: str, substitutions: dict[str, str]) -> str:
    text = (TEMPLATE_FOLDER / template).read_text()
    playbooks = {path.stem for path in (shipped_files.shipped_folder() / "playbooks").glob("*.yml")}
    for placeholder, value in {**substitutions, "@PLAYBOOKS@": " ".join(sorted(playbooks))}.items():
        text = text.replace(placeholder, value)
    return text


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {
    "bash": _posix_renderer("completion.bash"),
    "zsh": _posix_renderer("completion.zsh"),
    "fish": _render_fish,
}
