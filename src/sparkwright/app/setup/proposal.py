"""Propose recipes for a new host, best first, and build the file contents to add to the project. Free of side effects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from sparkwright import units
from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines import budget
from sparkwright.engines.budget import SYSTEM_ROW, Budget, Row, StartFacts
from sparkwright.errors import Refused
from sparkwright.project import catalogue, shipped_files
from sparkwright.project.inventory.rules import PATTERN_CHARACTERS_HINT, UNMATCHABLE_NAME_PATTERN
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import compute_memory
from sparkwright.project.recipe.scope import DEFAULT_SHM_SIZE
from sparkwright.trust.container_option_rules import parse_size
from sparkwright.visible import one_line

#: the shipped recipe that hosts/spark1.yml and hosts/sandbox.yml use
DEFAULT_RECIPE = "qwen3.5-35b"
Verdict = Literal["fits", "unknown", "too large"]


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of a host that a recipe is being selected for."""

    total_bytes: int
    #: memory that must stay free, in GiB
    reserve_gib: float = RESERVE_GIB
    #: memory that the system uses without a server
    system_row: Row = SYSTEM_ROW
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict on whether a recipe's server fits a host."""

    verdict: Verdict
    #: the figures behind the verdict, as a clause
    reason: str
    #: None if the server's memory is unknown
    budget: Budget | None = None
    #: a flag with the largest value that would fit, as "FLAG VALUE", for a server that does not fit; empty if there is none
    largest_fitting_flag: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A recipe proposed for a host."""

    recipe: Recipe
    fit: Fit
    #: the model's row in the survey; None if the host does not have the model
    local_copy: Mapping[str, Any] | None = None
    #: True if a container on the host serves from the model's folder, or serves the recipe's model name
    is_served: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.fit.verdict

    @property
    def reason(self) -> str:
        return self.fit.reason

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def local_copy_text(self) -> str:
        """The model's size and folder on the host; empty if it is not there."""
        return (
            f"{units.format_size(self.local_copy['size_bytes'])} in {self.local_copy['dir']}" if self.local_copy else ""
        )

    @property
    def model_dir_override(self) -> str:
        """The folder to use instead of the recipe's model folder; empty to use the recipe's."""
        return str(self.local_copy["dir"]) if self.local_copy and self.local_copy["place"] == "folder" else ""


def propose_recipes(
    recipes: Sequence[Recipe], survey: Mapping[str, Any] | None, reserve_gib: float = RESERVE_GIB
) -> list[Proposal]:
    """Return the proposals for a single host, best first.

    Recipes that are served, or whose model is on the host, come first, then DEFAULT_RECIPE, then the others by name. Recipes that
    are too large come last.

    Args:
        survey: answer from the `survey` module; None if the host was not surveyed.
    """
    proposals = [_propose_recipe(recipe, survey, reserve_gib) for recipe in recipes if recipe.file.parallel is None]
    return sorted(
        proposals,
        key=lambda proposal: (
            proposal.verdict == "too large",
            not proposal.is_served,
            proposal.local_copy is None,
            proposal.name != DEFAULT_RECIPE,
            proposal.name,
        ),
    )


def _propose_recipe(recipe: Recipe, survey: Mapping[str, Any] | None, reserve_gib: float) -> Proposal:
    if survey is None:
        return Proposal(recipe, Fit("unknown", "the host was not surveyed"))
    copies = [model for model in survey["models"] if model["id"] == recipe.file.model.id]
    copies_in_model_folder = [model for model in copies if model["place"] == "own"]
    local_copy = next(iter([*copies_in_model_folder, *copies]), None)
    folders = {model["dir"] for model in copies}
    is_served = any(
        server["model_dir"] in folders or recipe.served_name in server["models"] for server in survey["servers"]
    )
    catalogue_bytes = int(catalogue.find_entry(recipe.name, recipe.file.model.id).weights_gb * 1e9) or None
    files_bytes = int(local_copy["size_bytes"]) if local_copy else catalogue_bytes
    fit = evaluate_fit(recipe, memory_from_survey(survey, reserve_gib), files_bytes)
    return Proposal(recipe, fit, local_copy, is_served)


def memory_from_survey(survey: Mapping[str, Any], reserve_gib: float) -> HostMemory:
    """Return the memory of a host from its survey. If nothing is served, the memory in use is the system's."""
    total_bytes, available_bytes = int(survey["memory_bytes"]), survey.get("memory_available_bytes")
    models = (survey.get("ollama") or {}).get("models", ())
    if available_bytes is None or survey["servers"] or models is None or models:
        return HostMemory(total_bytes, reserve_gib, available_bytes=available_bytes)
    system_row = Row(
        "the host itself", max(0, total_bytes - available_bytes), "in use now, with nothing served", "host"
    )
    return HostMemory(total_bytes, reserve_gib, system_row, available_bytes)


def evaluate_fit(
    recipe: Recipe,
    host_memory: HostMemory,
    files_bytes: int | None,
    locked: Mapping[str, Any] | None = None,
    start_facts: StartFacts | None = None,
) -> Fit:
    """Return whether a recipe's server fits a host that serves nothing else, using the budget of `plan` and `deploy`.

    Args:
        files_bytes: size of the model's files, or None if unknown; not used as the size of the weights if the recipe loads only
            some files of a repository.
        locked: the model's entry in the lock, which the estimates for some engines need.
        start_facts: figures from earlier starts on the host; None if there are none.
    """
    memory, model = compute_memory(recipe, {"model": locked}), recipe.file.model
    uses_all_files = not (model.file_key or model.allow or model.ignore)
    if uses_all_files and files_bytes and not memory.weights_bytes:
        memory = replace(memory, weights_bytes=files_bytes, weights_source="the model's files")
    files_text = f"{units.format_gib(files_bytes)} GiB of files" if files_bytes else ""
    if not memory.known:
        return Fit(
            "unknown",
            f"{files_text}{'; ' if files_text else ''}the engine's memory is not known until the model is pinned",
        )
    start_facts = start_facts or StartFacts()
    start_facts = replace(start_facts, shm_bytes=_shm_bytes(recipe), shm_source="shm_size")
    host_budget = budget.build(
        memory,
        host_memory.total_bytes,
        start_facts,
        reserve_bytes=int(host_memory.reserve_gib * units.GIB),
        system_row=host_memory.system_row,
        available_bytes=host_memory.available_bytes,
    )
    budget_text = describe_budget(host_budget)
    engine_bytes = memory.engine_bytes(host_memory.total_bytes)
    if uses_all_files and memory.weights_bytes > engine_bytes:
        engine_share = f"{units.format_gib(engine_bytes)} of {units.format_gib(host_memory.total_bytes)} GiB"
        return Fit("too large", f"{files_text}, but the engine may use only {engine_share}", host_budget)
    if not host_budget.fits:
        return Fit("too large", f"it takes {budget_text}", host_budget, budget.format_largest_fit(memory, host_budget))
    if files_bytes is None:
        return Fit("unknown", f"it takes {budget_text}; the model's size is not known until it is pinned", host_budget)
    return Fit("fits", f"{files_text}; it takes {budget_text}", host_budget)


def describe_budget(host_budget: Budget) -> str:
    """Summarize a budget, for example "28.4 of 28.0 GiB (18.4 for the engine, 6.0 for the host itself, 4.0 reserve)"."""
    host_side_bytes = sum(row.size_bytes for row in host_budget.rows if row.name == budget.HOST_SIDE_ROW_NAME)
    reserve_bytes = sum(row.size_bytes for row in host_budget.rows if row.name == "reserve")
    parts = [
        f"{units.format_gib(host_budget.owner_bytes('server') - host_side_bytes)} for the engine",
        f"{units.format_gib(host_side_bytes)} on the host's side" if host_side_bytes else "",
    ]
    parts += [
        f"{units.format_gib(host_budget.owner_bytes('host') - reserve_bytes)} for the host itself",
        f"{units.format_gib(reserve_bytes)} reserve",
    ]
    return (
        f"{units.format_gib(host_budget.need_bytes)} of {units.format_gib(host_budget.total_bytes)} GiB "
        f"({', '.join(filter(None, parts))})"
    )


def _shm_bytes(recipe: Recipe) -> int:
    """Return the size limit of the server's /dev/shm in bytes.

    It is 0 for `ipc: host`, because only the host knows that limit, which is half of its memory.
    """
    container = recipe.file.container.model_dump()
    return 0 if container.get("ipc") == "host" else parse_size(str(container.get("shm_size") or DEFAULT_SHM_SIZE))


#: a host's name: a valid file name without pattern characters
HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
DEFAULT_GROUP = "lab"
_DIR_LINE_PATTERN = re.compile(r"(?m)^  dir: .*$")
_RECIPE_LINE_PATTERN = re.compile(r"(?m)^recipe: \S+")
_PORT_LINE_PATTERN = re.compile(r"(?m)^serve_port: [0-9]+")
#: user or host name in [USER@]ADDRESS[:PORT]
_USER_OR_HOST_NAME_PATTERN = re.compile(r"[^@\s:-][^@\s:]{0,254}")
_IPV6_PATTERN = re.compile(r"[0-9A-Fa-f:.%]{2,64}")


@dataclass(frozen=True, slots=True)
class NewHost:
    """A host to add to the project."""

    name: str
    address: str
    #: login name; None to use the ssh configuration
    user: str | None = None
    #: ssh port; None to use the ssh configuration
    port: int | None = None
    groups: tuple[str, ...] = (DEFAULT_GROUP,)
    recipe: str = ""

    @classmethod
    def parse_address(cls, text: str, **other_fields: Any) -> NewHost:
        """Parse [USER@]ADDRESS[:PORT], with no port for an IPv6 address. Raises Refused for any other text."""
        user, _, address_and_port = text.rpartition("@")
        address, _, port_text = (
            address_and_port.partition(":") if address_and_port.count(":") == 1 else (address_and_port, "", "")
        )
        port = int(port_text) if re.fullmatch(r"[0-9]{1,5}", port_text) else None
        is_valid = (_USER_OR_HOST_NAME_PATTERN if address_and_port.count(":") < 2 else _IPV6_PATTERN).fullmatch(
            address
        ) and (not user or _USER_OR_HOST_NAME_PATTERN.fullmatch(user))
        if (
            not is_valid
            or ("@" in text and not user)
            or (":" in address_and_port and address_and_port != address and port not in range(1, 65536))
        ):
            fix = "Type NAME, USER@NAME or USER@NAME:PORT."
            raise Refused(f"'{one_line(text, max_chars=80)}' is not an address.", fix=fix)
        return cls(
            **{"name": suggest_name(address), "address": address, "user": user or None, "port": port, **other_fields}
        )


def suggest_name(address: str) -> str:
    """Return a name for the host in the project: the first label of its host name, or the whole IP address."""
    name = address if re.fullmatch(r"[0-9.]+", address) else address.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "spark1"


def refuse_name(name: str, kind: str = "name") -> None:
    """Raise Refused for a name that a host or a group can't have."""
    if (
        not HOST_NAME_PATTERN.fullmatch(name)
        or UNMATCHABLE_NAME_PATTERN.search(name)
        or name in ("all", "groups", "ungrouped")
    ):
        fix = (
            f"Use letters, digits, `.`, `_` and `-`: {PATTERN_CHARACTERS_HINT}."
            if UNMATCHABLE_NAME_PATTERN.search(name)
            else "Choose another."
        )
        raise Refused(f"'{one_line(name, max_chars=80)}' can't be a {kind}.", fix=fix)


def render_host_file(host: NewHost, survey_lines: Sequence[str], command: str) -> str:
    """Return the text of hosts/NAME.yml.

    Args:
        survey_lines: results of the survey, one sentence each.
        command: the command that writes the file.
    """
    comments = [f"# Written by `sparkwright {command}`. Every key: docs/files/host.md, or complete it in your editor."]
    comments += (
        ["# Found on the host:", *(f"#   {one_line(line, max_chars=120)}" for line in survey_lines)]
        if survey_lines
        else []
    )
    user_comment = "# user: ops                    # default: from your ssh configuration"
    rows = [
        f"address: {_format_yaml(host.address)}",
        f"user: {_format_yaml(host.user)}" if host.user else user_comment,
        *([f"port: {host.port}"] if host.port else []),
        f"groups: [{', '.join(map(_format_yaml, host.groups))}]",
        *([f"recipe: {_format_yaml(host.recipe)}            # recipes/{host.recipe}.yml"] if host.recipe else []),
        "# serve_port: 8000             # publish the server on a port other than the recipe's",
    ]
    return "\n".join([shipped_files.schema_line("host").rstrip(), *comments, "", *rows]) + "\n"


def add_groups(text: str, existing_groups: Mapping[str, Any] | None, groups: Sequence[str]) -> str:
    """Return groups.yml with the missing groups added at its end.

    Args:
        text: the current file; empty if it does not exist.
        existing_groups: its parsed content.
    """
    missing_groups = [group for group in groups if group not in (existing_groups or {})]
    new_text = text or shipped_files.schema_line("groups")
    if missing_groups and not new_text.endswith("\n"):
        new_text += "\n"
    return new_text + "".join(f"\n{group}: {{}}\n" for group in missing_groups)


def set_model_dir(recipe_text: str, folder: str, host: str) -> str:
    """Return a recipe's text with `dir` set to the folder where a host already has the model."""
    line = f"  dir: {_format_yaml(folder)}      # where {host} has it; its hashes are verified before it is served"
    return _DIR_LINE_PATTERN.sub(lambda _: line, recipe_text, count=1)


def set_recipe_and_port(host_text: str, recipe: str, port: int) -> str:
    """Return the text of a host's file with another recipe and port."""
    return _PORT_LINE_PATTERN.sub(
        f"serve_port: {port}", _RECIPE_LINE_PATTERN.sub(f"recipe: {recipe}", host_text, count=1), count=1
    )


def _format_yaml(value: str) -> str:
    """Format a value so that YAML reads it as text."""
    return yaml.safe_dump(value, width=1000).split("\n")[0]
