"""Texts that a new host adds to a project. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.inventory.rules import SIGNS, SIGNS_SHOWN
from sparkwright.visible import one_line

#: a host's name, which is a file name without a pattern's characters
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
GROUP = "lab"
_DIR = re.compile(r"(?m)^  dir: .*$")
_RECIPE = re.compile(r"(?m)^recipe: \S+")
_PORT = re.compile(r"(?m)^serve_port: [0-9]+")
#: parts of a typed [USER@]ADDRESS[:PORT]
_WORD = re.compile(r"[^@\s:-][^@\s:]{0,254}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.%]{2,64}")


@dataclass(frozen=True, slots=True)
class NewHost:
    """A host to add to the project."""

    name: str
    address: str
    #: None for the ssh configuration's
    user: str | None = None
    #: None for the ssh configuration's
    port: int | None = None
    groups: tuple[str, ...] = (GROUP,)
    recipe: str = ""

    @classmethod
    def typed(cls, text: str, **more: Any) -> NewHost:
        """Parse [USER@]ADDRESS[:PORT]; an IPv6 address takes no port here. Raises Refused if the text has another form."""
        user, _, rest = text.rpartition("@")
        address, _, digits = rest.partition(":") if rest.count(":") == 1 else (rest, "", "")
        port = int(digits) if re.fullmatch(r"[0-9]{1,5}", digits) else None
        good = (_WORD if rest.count(":") < 2 else _IPV6).fullmatch(address) and (not user or _WORD.fullmatch(user))
        if not good or ("@" in text and not user) or (":" in rest and rest != address and port not in range(1, 65536)):
            fix = "Type NAME, USER@NAME or USER@NAME:PORT."
            raise Refused(f"'{one_line(text, at_most=80)}' is no address.", fix=fix)
        return cls(**{"name": name_of(address), "address": address, "user": user or None, "port": port, **more})


def name_of(address: str) -> str:
    """Return the host's name in the project: the first label of a host name, or the whole IP address."""
    name = address if re.fullmatch(r"[0-9.]+", address) else address.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "spark1"


def refuse_name(name: str, what: str = "name") -> str:
    """Return the name if a host or a group can have it. Raises Refused otherwise."""
    if not NAME.fullmatch(name) or SIGNS.search(name) or name in ("all", "groups", "ungrouped"):
        fix = f"Use letters, digits, `.`, `_` and `-`: {SIGNS_SHOWN}." if SIGNS.search(name) else "Choose another."
        raise Refused(f"'{one_line(name, at_most=80)}' can't be a {what}.", fix=fix)
    return name


def host_text(host: NewHost, found: Sequence[str], command: str) -> str:
    """Return the text of hosts/NAME.yml.

    Args:
        found: results of the survey, one sentence each.
        command: the command that writes the file.
    """
    about = [f"# Written by `sparkwright {command}`. Every key: docs/files/host.md, or complete it in your editor."]
    about += ["# Found there:", *(f"#   {one_line(line, at_most=120)}" for line in found)] if found else []
    optional = "# user: ops                    # else as your ssh configuration says"
    rows = [
        f"address: {_yaml(host.address)}",
        f"user: {_yaml(host.user)}" if host.user else optional,
        *([f"port: {host.port}"] if host.port else []),
        f"groups: [{', '.join(map(_yaml, host.groups))}]",
        *(
            [f"recipe: {_yaml(host.recipe)}            # what it serves: recipes/{host.recipe}.yml"]
            if host.recipe
            else []
        ),
        "# serve_port: 8000             # publish the server elsewhere than the recipe does",
    ]
    return "\n".join([shipped_files.line("host").rstrip(), *about, "", *rows]) + "\n"


def with_groups(text: str, known: Mapping[str, Any] | None, groups: Sequence[str]) -> str:
    """Return groups.yml with the missing groups added at its end.

    Args:
        text: the present file; empty if there is none.
    """
    new = [group for group in groups if group not in (known or {})]
    start = text or shipped_files.line("groups")
    if new and not start.endswith("\n"):
        start += "\n"
    return start + "".join(f"\n{item}: {{}}\n" for item in new)


def with_dir(recipe: str, folder: str, host: str) -> str:
    """Return a recipe's text with the folder in which a host already has the model."""
    line = f"  dir: {_yaml(folder)}      # as {host} has it; proved by its hashes before it serves"
    return _DIR.sub(lambda _: line, recipe, count=1)


def with_recipe(host: str, recipe: str) -> str:
    """Return a shipped host's text with another recipe."""
    return _RECIPE.sub(f"recipe: {recipe}", host, count=1)


def with_port(host: str, port: int) -> str:
    """Return the shipped sandbox's text with another port."""
    return _PORT.sub(f"serve_port: {port}", host, count=1)


def _yaml(value: str) -> str:
    """Format a value so that YAML reads it as text."""
    return yaml.safe_dump(value, default_style=None, width=1000).split("\n")[0]
