"""`task` of a recipe: settings that it requires, allows and excludes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.bench import experiment
from sparkwright.errors import Refused
from sparkwright.project.recipe import recipe
from tests.project.recipes import load_text

RECIPE: dict[str, Any] = {
    "image": "repo/engine:v1",
    "model": {"id": "a/b", "dir": "~/m", "mount": "/m"},
    "container": {"name": "server", "ports": ["8001:8001"]},
    "publish": "loopback",
}


def load_recipe(tmp_path: Path, **fields: Any) -> recipe.Recipe:
    return load_text(tmp_path, yaml.safe_dump({**RECIPE, **fields}, sort_keys=False))


LLAMA = {"engine": "llama_cpp", "model": {**RECIPE["model"], "file": "*.gguf"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "embed", "vllm": {"runner": "generate"}}, "with `runner: generate` vLLM does not embed."),
        ({"vllm": {"runner": "pooling"}}, "with `runner: pooling` vLLM does not generate."),
        ({**LLAMA, "task": "embed", "llama_cpp": {}}, "`task: embed` needs `embeddings: true`"),
        ({**LLAMA, "task": "rerank", "llama_cpp": {"embeddings": True}}, "`task: rerank` needs `reranking: true`"),
        ({**LLAMA, "task": "embed", "llama_cpp": {"embedding": True, "pooling": "none"}},
         "with `pooling: none` llama.cpp does not embed."),
        ({"engine": "sglang", "task": "embed", "sglang": {}}, "`task: embed` needs `is-embedding: true`"),
        ({"engine": "sglang", "sglang": {"is-embedding": True}}, "with `is-embedding: true` SGLang does not generate."),
        ({"task": "embed", "expect": {"tok_per_s": 40}}, "`expect.tok_per_s` does not apply to `task: embed`"),
        ({"task": "embed", "parallel": {"tensor": 2}}, "`parallel` cannot be used with `task: embed`."),
        ({"task": "speak"}, "`task`"),
    ],
)  # fmt: skip
def test_setting_that_does_not_fit_the_task_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, **fields)
    assert message in excinfo.value.message
    assert "one.yml:" in excinfo.value.where
    assert excinfo.value.fix or fields == {"task": "speak"}


def test_flag_counts_in_another_spelling(tmp_path: Path) -> None:
    assert load_recipe(tmp_path, **LLAMA, task="embed", llama_cpp={"embedding": True}).engine.task == "embed"


def test_bench_refuses_other_tasks_than_generate(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="bench measures generated text"):
        experiment.running_arm(load_recipe(tmp_path, task="embed"))


def test_default_task_is_left_out(tmp_path: Path) -> None:
    assert "task" not in load_recipe(tmp_path).to_json()
    assert load_recipe(tmp_path).engine.labels == {}
