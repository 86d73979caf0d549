"""Proposals for a new host: recipes that fit, ranked, and the texts to add to the project. Without side effects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from sparkwright import units
from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines import budget
from sparkwright.engines.budget import SYSTEM, Budget, Row, Start
from sparkwright.errors import Refused
from sparkwright.project import catalogue, shipped_files
from sparkwright.project.inventory.rules import SIGNS, SIGNS_SHOWN
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import served_memory
from sparkwright.project.recipe.scope import USUAL_SHM
from sparkwright.trust.container_words import size_bytes
from sparkwright.visible import one_line

#: the shipped recipe that hosts/spark1.yml and hosts/sandbox.yml use
USUAL = "qwen3.5-35b"
Verdict = Literal["fits", "unknown", "too large"]


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of a host that a recipe is being selected for."""

    total_bytes: int
    #: memory that must stay free, in GiB
    reserve_gib: float = RESERVE_GIB
    #: memory that the host itself uses while nothing is served
    own: Row = SYSTEM
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict on whether a recipe's server fits a host."""

    verdict: Verdict
    #: the figures behind the verdict, as a clause
    why: str
    #: None if the server's memory is unknown
    budget: Budget | None = None
    #: a flag with the largest value that would fit, as "FLAG VALUE", for a server that does not fit; empty if there is none
    largest: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe proposed for a host."""

    recipe: Recipe
    fit: Fit
    #: the model's row in the survey; None if it is not on disk
    found: Mapping[str, Any] | None = None
    #: True if a container on the host serves from the model's folder, or has the recipe's name
    served: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.fit.verdict

    @property
    def why(self) -> str:
        return self.fit.why

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def on_disk(self) -> str:
        """The model's size and folder on the host; empty if it is not there."""
        return f"{units.size(self.found['size_bytes'])} in {self.found['dir']}" if self.found else ""

    @property
    def moved(self) -> str:
        """The folder to use instead of the recipe's model folder; empty if nothing has to change."""
        return str(self.found["dir"]) if self.found and self.found["place"] == "folder" else ""


def choices(
    recipes: Sequence[Recipe], survey: Mapping[str, Any] | None, reserve_gib: float = RESERVE_GIB
) -> list[Choice]:
    """Return the proposals for a host, best first.

    Recipes that are served, or whose model is on the host, come first, then the usual one, then the others by name. Recipes that
    are too large come last.

    Args:
        survey: the host's answer; None if it was not surveyed.
    """
    found = [_choice(recipe, survey, reserve_gib) for recipe in recipes if recipe.file.parallel is None]
    return sorted(
        found,
        key=lambda choice: (
            choice.verdict == "too large",
            not choice.served,
            choice.found is None,
            choice.name != USUAL,
            choice.name,
        ),
    )


def _choice(recipe: Recipe, survey: Mapping[str, Any] | None, reserve_gib: float) -> Choice:
    if survey is None:
        return Choice(recipe, Fit("unknown", "the host was not surveyed"))
    rows = [model for model in survey["models"] if model["id"] == recipe.file.model.id]
    own = [model for model in rows if model["place"] == "own"]
    row = next(iter([*own, *rows]), None)
    folders = {model["dir"] for model in rows}
    served = any(
        server["model_dir"] in folders or recipe.served_name in server["models"] for server in survey["servers"]
    )
    known = int(catalogue.of(recipe.name, recipe.file.model.id).weights_gb * 1e9) or None
    return Choice(
        recipe, fit(recipe, surveyed(survey, reserve_gib), int(row["size_bytes"]) if row else known), row, served
    )


def surveyed(survey: Mapping[str, Any], reserve_gib: float) -> HostMemory:
    """Return the memory of a host from its survey. If it serves nothing, the memory in use is its own."""
    total, available = int(survey["memory_bytes"]), survey.get("memory_available_bytes")
    models = (survey.get("ollama") or {}).get("models", ())
    if available is None or survey["servers"] or models is None or models:
        return HostMemory(total, reserve_gib, available_bytes=available)
    own = Row("the host itself", max(0, total - available), "in use now, with nothing served", "host")
    return HostMemory(total, reserve_gib, own, available)


def fit(
    recipe: Recipe,
    host: HostMemory,
    files_bytes: int | None,
    locked: Mapping[str, Any] | None = None,
    start: Start | None = None,
) -> Fit:
    """Return whether a recipe's server fits a host that serves nothing else, using the budget of `plan` and `deploy`.

    Args:
        recipe: the recipe. If it uses only some files of a repository, `files_bytes` is not the size of the weights.
        host: the host's memory.
        files_bytes: size of the model's files; None if unknown.
        locked: the model's entry in the lock, which the estimates for some engines need.
        start: figures from earlier starts on the host; None if there are none.
    """
    memory, model = served_memory(recipe, {"model": locked}), recipe.file.model
    entire = not (model.chosen or model.allow or model.ignore)
    if entire and files_bytes and not memory.weights_bytes:
        memory = replace(memory, weights_bytes=files_bytes, weights_source="the model's files")
    files = f"{units.gib(files_bytes)} GiB of files" if files_bytes else ""
    if not memory.known:
        return Fit("unknown", f"{files}{'; ' if files else ''}what the engine takes is known once the model is pinned")
    start = start or Start()
    start = replace(start, shm_bytes=_shm_bytes(recipe), shm_source="shm_size")
    found = budget.of(
        memory,
        host.total_bytes,
        start,
        reserve_bytes=int(host.reserve_gib * units.GIB),
        own=host.own,
        available_bytes=host.available_bytes,
    )
    needs = budget_clause(found)
    engine_bytes = memory.engine_bytes(host.total_bytes)
    if entire and memory.weights_bytes > engine_bytes:
        takes = f"{units.gib(engine_bytes)} of {units.gib(host.total_bytes)} GiB"
        return Fit("too large", f"{files}, the engine takes {takes}", found)
    if not found.fits:
        return Fit("too large", f"it takes {needs}", found, budget.largest(memory, found))
    if files_bytes is None:
        return Fit("unknown", f"it takes {needs}; the model's size is known once it is pinned", found)
    return Fit("fits", f"{files}; it takes {needs}", found)


def budget_clause(found: Budget) -> str:
    """Summarize a budget, as "97.1 of 119.7 GiB (86.1 for the engine, 7.0 on the host's side, 4.0 reserve)"."""
    side = sum(row.size_bytes for row in found.rows if row.name == budget.HOST_SIDE)
    reserve = sum(row.size_bytes for row in found.rows if row.name == "reserve")
    parts = [
        f"{units.gib(found.of('server') - side)} for the engine",
        f"{units.gib(side)} on the host's side" if side else "",
    ]
    parts += [f"{units.gib(found.of('host') - reserve)} the host itself", f"{units.gib(reserve)} reserve"]
    return f"{units.gib(found.need_bytes)} of {units.gib(found.total_bytes)} GiB ({', '.join(filter(None, parts))})"


def _shm_bytes(recipe: Recipe) -> int:
    """Return the size limit of the server's /dev/shm in bytes.

    It is 0 for `ipc: host`, because only the host knows that limit, which is half of its memory.
    """
    container = recipe.file.container.model_dump()
    return 0 if container.get("ipc") == "host" else size_bytes(str(container.get("shm_size") or USUAL_SHM))


#: a host's name, which is a file name without characters that patterns use
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
    #: login name; None to use the ssh configuration
    user: str | None = None
    #: ssh port; None to use the ssh configuration
    port: int | None = None
    groups: tuple[str, ...] = (GROUP,)
    recipe: str = ""

    @classmethod
    def typed(cls, text: str, **more: Any) -> NewHost:
        """Parse [USER@]ADDRESS[:PORT], with no port for an IPv6 address. Raises Refused for any other text."""
        user, _, rest = text.rpartition("@")
        address, _, digits = rest.partition(":") if rest.count(":") == 1 else (rest, "", "")
        port = int(digits) if re.fullmatch(r"[0-9]{1,5}", digits) else None
        good = (_WORD if rest.count(":") < 2 else _IPV6).fullmatch(address) and (not user or _WORD.fullmatch(user))
        if not good or ("@" in text and not user) or (":" in rest and rest != address and port not in range(1, 65536)):
            fix = "Type NAME, USER@NAME or USER@NAME:PORT."
            raise Refused(f"'{one_line(text, at_most=80)}' is not an address.", fix=fix)
        return cls(**{"name": name_of(address), "address": address, "user": user or None, "port": port, **more})


def name_of(address: str) -> str:
    """Return a name for the host in the project: the first label of its host name, or the whole IP address."""
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
        text: content of the current file; empty if there is none.
    """
    new = [group for group in groups if group not in (known or {})]
    start = text or shipped_files.line("groups")
    if new and not start.endswith("\n"):
        start += "\n"
    return start + "".join(f"\n{item}: {{}}\n" for item in new)


def with_dir(recipe: str, folder: str, host: str) -> str:
    """Return a recipe's text with `dir` set to the folder where a host already has the model."""
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
