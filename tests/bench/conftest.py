"""A recipe, and the entries of a lock."""

import copy
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL
from sparkwright.project import recipe
from sparkwright.project.recipe import Recipe

TOP = Path(__file__).parent.parent.parent


@pytest.fixture
def base() -> Recipe:
    return recipe.load(TOP, "qwen3.5-35b")


def make_lock_entries(version: str = "0.32.0", model: dict[str, Any] = HYBRID_MODEL) -> dict[str, Any]:
    return {
        "image": {"digest": f"sha256:{'1' * 64}", "engine_version": version},
        "model": {"commit": "c" * 40, "config": copy.deepcopy(model), "files": []},
    }


LOCK = make_lock_entries()
DENSE_LOCK = make_lock_entries(model=DENSE_MODEL)
