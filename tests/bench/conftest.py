"""A recipe and a lock's entries, as in a project."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.project import recipe
from sparkwright.project.recipe import Recipe

TOP = Path(__file__).parent.parent.parent


@pytest.fixture
def base() -> Recipe:
    return recipe.load(TOP, "qwen3.5-35b")


def lock_entries(version: str = "0.32.0", model: str = "hybrid") -> dict[str, Any]:
    """Return the entries of a lock: the engine's version, the model's config."""
    from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL

    config = json.loads(json.dumps(HYBRID_MODEL if model == "hybrid" else DENSE_MODEL))
    return {
        "image": {"digest": f"sha256:{'1' * 64}", "engine_version": version},
        "model": {"commit": "c" * 40, "config": config, "files": []},
    }
