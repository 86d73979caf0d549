"""The real vLLM accepts the shipped recipes: its argument parser, the checks after it, and its configuration of each model."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from sparkwright.engines.vllm import flags
from sparkwright.project import recipe
from sparkwright.project.recipe.engine_settings import resolve_settings
from tests.project.test_shipped_files import TOP, load_config
from tests.real_engine.engine import ENVIRONMENT, Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
ASK = Path(__file__).parent / "ask_recipes.py"
OF_VLLM = tuple(name for name in recipe.names(TOP) if recipe.load(TOP, name).engine.name == "vllm")


@pytest.fixture(scope="module")
def errors(engine: Engine) -> dict[str, dict[str, str]]:
    """Return the engine's errors: {recipe: {"parser": …, "model": …}}."""
    env = {**os.environ, **ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}
    options = json.dumps({name: {"argv": serve_arguments(name), "config": load_config(name)} for name in OF_VLLM})
    words = [str(engine.python), str(ASK)]
    result = subprocess.run(words, input=options, env=env, check=True, timeout=900, stdout=subprocess.PIPE, text=True)
    errors: dict[str, dict[str, str]] = json.loads(result.stdout)
    return errors


def serve_arguments(name: str) -> list[str]:
    """Return the arguments of `vllm serve` for a recipe."""
    loaded_recipe = recipe.load(TOP, name)
    version = loaded_recipe.engine.advice.version(loaded_recipe.image.rpartition(":")[2])
    settings = resolve_settings(loaded_recipe, {}, model=load_config(name), version=version)
    return [loaded_recipe.file.model.mount, *flags.argv(settings.flags)]


@pytest.mark.parametrize("name", OF_VLLM)
def test_the_engine_accepts_the_flags_of_a_shipped_recipe(errors: dict[str, dict[str, str]], name: str) -> None:
    assert errors[name] == {"parser": "", "model": ""}
