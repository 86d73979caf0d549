"""The commands and options that shells can complete, and the kind of value each takes."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.engines import adapter_rules, container_rules, engine, memory_rules, recipe_age, template_rules
from sparkwright.modules.registry import NAMES
from sparkwright.project import shipped_files
from sparkwright.sandbox.faults import FAULTS, OF_MEMBERS

#: kinds of values that the shell reads from the project's folder
HOSTS, RECIPES, PLAYBOOKS = "hosts", "recipes", "playbooks"
FILES, TEXT = "files", "text"

#: kind of value by option, or by command and option; other options take text
OPTIONS = {
    **dict.fromkeys(("host", "from", "images.copy to", "models.copy to"), HOSTS),
    **dict.fromkeys(("recipe", "a", "b", "switch to"), RECIPES),
    **dict.fromkeys(("file", "dataset", "to"), FILES),
    "heal": "heal",
}
#: kind of the word after a command
WORDS = {
    "play": PLAYBOOKS,
    **dict.fromkeys(("playbook.eject", "playbook.update"), "shipped"),
    "schema": "schemas",
    "docs.module": "modules",
    "explain": "rules",
    "sandbox.fault": "faults",
    "completion": "shells",
    **dict.fromkeys(("init", "model.inspect", "bench.compare", "bench.report", "bench.import", "recipe.import"), FILES),
    "recipe.export": RECIPES,
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    #: for example `--host` and `-H`
    flags: tuple[str, ...]
    about: str
    #: kind of its value; empty for a switch
    takes: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options."""

    name: str
    about: str
    options: tuple[Option, ...]
    #: kind of the word after the command; empty for none
    word: str = ""


def kind_of(command: str, option: str) -> str:
    """Return the kind of values that complete an option."""
    return OPTIONS.get(f"{command} {option}") or OPTIONS.get(option) or TEXT


def choices() -> dict[str, list[str]]:
    """Return the values of the kinds that the program itself knows."""
    return {
        "schemas": ["groups", "host", "lock", "playbook", "recipe", "results"],
        "modules": list(NAMES),
        "shipped": [shipped_files.short(name) for name in shipped_files.ejectable()],
        "rules": sorted(
            {
                *container_rules.RULES,
                *memory_rules.RULES,
                *template_rules.RULES,
                *adapter_rules.RULES,
                *recipe_age.RULES,
                *(name for engine in engine.served() for name in engine.advice.titles()),
            }
        ),
        "faults": [*FAULTS, *OF_MEMBERS, "none"],
        "shells": ["bash", "zsh", "fish"],
        "heal": ["none", "restart"],
    }
