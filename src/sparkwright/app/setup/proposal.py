"""Which recipes fit a host, and in which order they are proposed. Pure; what is not known is said to be unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import units
from sparkwright.defaults import RESERVE_GIB
from sparkwright.project import catalogue
from sparkwright.project.recipe import Recipe

#: of the recipes that ship: what hosts/spark1.yml and hosts/sandbox.yml serve
USUAL = "qwen3.5-35b"
Verdict = Literal["fits", "unknown", "too large"]


@dataclass(frozen=True, slots=True)
class Choice:
    """why: the verdict's figures. found: the model's row of the survey; None: not on the disk. served: a container there serves
    from that folder, or under the recipe's name.
    """

    recipe: Recipe
    verdict: Verdict
    why: str
    found: Mapping[str, Any] | None = None
    served: bool = False

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def on_disk(self) -> str:
        """The model's size and folder there; empty when it is not there."""
        return f"{units.size(self.found['size_bytes'])} in {self.found['dir']}" if self.found else ""

    @property
    def moved(self) -> str:
        """The folder to take the model from, where it is another than the recipe's; empty where nothing is to be changed."""
        return str(self.found["dir"]) if self.found and self.found["place"] == "folder" else ""


def choices(
    recipes: Sequence[Recipe], survey: Mapping[str, Any] | None, reserve_gib: float = RESERVE_GIB
) -> list[Choice]:
    """Every recipe for one host, the best first: those whose model is there, then the usual one, then by name.

    survey: None where the host was not asked.
    """
    found = [_choice(one, survey, reserve_gib) for one in recipes if one.file.parallel is None]
    return sorted(
        found,
        key=lambda one: (one.verdict == "too large", not one.served, one.found is None, one.name != USUAL, one.name),
    )


def _choice(recipe: Recipe, survey: Mapping[str, Any] | None, reserve_gib: float) -> Choice:
    if survey is None:
        return Choice(recipe, "unknown", "the host was not asked")
    rows = [one for one in survey["models"] if one["id"] == recipe.file.model.id]
    own = [one for one in rows if one["place"] == "own"]
    row = next(iter([*own, *rows]), None)
    folders = {one["dir"] for one in rows}
    served = any(one["model_dir"] in folders or recipe.served_name in one["models"] for one in survey["servers"])
    known = int(catalogue.of(recipe.name, recipe.file.model.id).weights_gb * 1e9) or None
    verdict, why = fit(recipe, int(survey["memory_bytes"]), reserve_gib, int(row["size_bytes"]) if row else known)
    return Choice(recipe, verdict, why, row, served)


def fit(
    recipe: Recipe,
    total_bytes: int,
    reserve_gib: float,
    files_bytes: int | None,
    locked: Mapping[str, Any] | None = None,
) -> tuple[Verdict, str]:
    """Whether a recipe's engine fits into a host, with the figures. files_bytes: the model's files there; None: not known.
    locked: the model's entry of the lock, by which some engines are counted.

    A recipe that takes some files of a repository says nothing of the size of those beside them.
    """
    memory = recipe.memory(locked or {})
    engine_bytes = int(memory.share * total_bytes) + memory.bytes  # as the module assert_memory_fits counts it
    takes = f"{units.gib(engine_bytes)} of {units.gib(total_bytes)} GiB"
    if engine_bytes + reserve_gib * units.GIB > total_bytes:
        return "too large", f"the engine takes {takes}, {reserve_gib:g} GiB must stay free"
    if not engine_bytes:
        files = f"{units.gib(files_bytes)} GiB of files; " if files_bytes else ""
        return "unknown", f"{files}what the engine takes is known once the model is pinned"
    if files_bytes is None:
        return "unknown", f"the engine takes {takes}; the model's size is known once it is pinned"
    model = recipe.file.model
    if files_bytes > engine_bytes and not (model.chosen or model.allow or model.ignore):
        return "too large", f"{units.gib(files_bytes)} GiB of files, the engine takes {takes}"
    return "fits", f"{units.gib(files_bytes)} GiB of files, the engine takes {takes}"
