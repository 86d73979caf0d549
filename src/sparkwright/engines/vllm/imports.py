"""Other people's ways to start vLLM. Sources: vllm-project/recipes@8959cf6, spark-arena/recipe-registry@3075780,
spark-arena/eugr-recipes@0d81770."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.engines.imports import Imports
from sparkwright.engines.vllm.flags import flag_types, flags
from sparkwright.engines.vllm.parallel import flags as parallel


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words with long names: `-tp 2` as `--tensor-parallel-size 2`, `-cc.x=1` as `--compilation-config.x=1`; `-O3` as
    two words."""
    found: list[str] = []
    for word in words:
        head = word.lstrip("-")
        name = next((end for end in (head.partition(".")[0].partition("=")[0],) if end in flag_types.SHORT), "")
        if word.startswith("-O") and word[2:].isdigit():
            found += [f"--{flag_types.SHORT['O']}", word[2:]]
        elif word.startswith("-") and not word.startswith("--") and name:
            found.append(f"--{flag_types.SHORT[name]}{head.removeprefix(name)}")
        else:
            found.append(word)
    return found


IMPORTS = Imports(
    image=f"vllm/vllm-openai:v{flag_types.VERSION}",
    port_inside=flags.DEFAULT_PORT,
    names=("vllm", "vllm.entrypoints.openai.api_server"),
    program=("vllm", "serve"),
    host="host",
    key=("api-key",),
    tensor=parallel.TENSOR,
    pipeline=parallel.PIPELINE,
    backends=(
        parallel.BACKEND,
        parallel.MEMBERS,
        parallel.RANK,
        parallel.HEAD,
        parallel.MASTER_PORT,
        parallel.HEADLESS,
    ),
    replicas=("data-parallel-size",),
    revisions=("revision",),
    files=("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "config"),
    further_models={
        "speculative-config": "model",
        "speculative-config.model": "",
        "tokenizer": "",
        "hf-config-path": "",
        "spec-model": "",
    },
    downloads=("download-dir",),
    tokens=("hf-token",),
    spelled_out=spelled_out,
    served_name=flags.SERVED_NAME,
)
