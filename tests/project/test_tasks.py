"""Settings that a recipe's task allows and excludes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.bench import experiment
from sparkwright.errors import Refused
from sparkwright.project.recipe import recipe

RECIPE: dict[str, Any] = {
    "image": "repo/engine:v1",
    "model": {"id": "a/b", "dir": "~/m", "mount": "/m"},
    "container": {"name": "server", "ports": ["8001:8001"]},
    "publish": "loopback",
}


def load_recipe(tmp_path: Path, **more: Any) -> recipe.Recipe:
    (tmp_path / "recipes").mkdir(exist_ok=True)
    (tmp_path / "recipes/e.yml").write_text(yaml.safe_dump({**RECIPE, **more}, sort_keys=False))
    return recipe.load(tmp_path, "e")


LLAMA = {"engine": "llama_cpp", "model": {**RECIPE["model"], "file": "*.gguf"}}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"task": "embed", "vllm": {"runner": "generate"}}, "with `runner: generate` vLLM does not embed."),
        ({"vllm": {"runner": "pooling"}}, "with `runner: pooling` vLLM does not generate."),
        ({**LLAMA, "task": "embed", "llama_cpp": {}}, "`task: embed` needs `embeddings: true`"),
        ({**LLAMA, "task": "rerank", "llama_cpp": {"embeddings": True}}, "`task: rerank` needs `reranking: true`"),
        (
            {**LLAMA, "task": "embed", "llama_cpp": {"embedding": True, "pooling": "none"}},
            "with `pooling: none` llama.cpp does not embed.",
        ),
        ({"engine": "sglang", "task": "embed", "sglang": {}}, "`task: embed` needs `is-embedding: true`"),
        ({"engine": "sglang", "sglang": {"is-embedding": True}}, "with `is-embedding: true` SGLang does not generate."),
        ({"task": "embed", "expect": {"tok_per_s": 40}}, "`expect.tok_per_s` does not apply to `task: embed`"),
        ({"task": "embed", "parallel": {"tensor": 2}}, "`parallel` cannot be used with `task: embed`."),
        ({"task": "speak"}, "`task`"),
    ],
)
def test_flags_that_make_it_another_server_are_refused_with_their_line(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, **more)
    assert says in excinfo.value.message
    assert "e.yml:" in excinfo.value.where
    assert excinfo.value.fix or more == {"task": "speak"}


def test_another_spelling_of_the_flag_will_do(tmp_path: Path) -> None:
    assert load_recipe(tmp_path, **LLAMA, task="embed", llama_cpp={"embedding": True}).engine.task == "embed"


def test_bench_measures_generated_text_alone(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="bench measures generated text"):
        experiment.running_arm(load_recipe(tmp_path, task="embed"))


def test_a_recipe_that_generates_says_nothing_of_it(tmp_path: Path) -> None:
    assert "task" not in load_recipe(tmp_path).to_json()
    assert load_recipe(tmp_path).engine.labels == {}
