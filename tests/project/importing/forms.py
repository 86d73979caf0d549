"""Small recipes in the formats of other tools, with the keys and flags of real ones.

Sources: vllm-project/recipes@8959cf6 (models/Google, models/Qwen), spark-arena/recipe-registry@3075780, spark-arena/eugr-recipes@0d81770,
scitrera/oss-spark-run@3190eb7.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sparkwright.project.importing import container, format_detection, recipe_builder
from sparkwright.project.importing.foreign_recipe import ImportReport
from sparkwright.project.importing.recipe_builder import ImportedRecipe

VLLM = """
meta:
  title: Tiny
  tasks: [text]
  hardware: {h100: verified, dgx_spark_gb10: verified}
model:
  model_id: acme/Tiny-30B
  min_vllm_version: "0.24.0"
  base_args: ["--max-num-seqs", "4"]
  base_env: {VLLM_A: "1"}
features:
  tool_calling: {args: ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]}
  spec_decoding: {args: ["--speculative-config", '{"method":"mtp"}']}
opt_in_features: [spec_decoding]
variants:
  default: {precision: bf16, vram_minimum_gb: 64}
  nvfp4:
    model_id: acme/Tiny-30B-NVFP4
    precision: nvfp4
    vram_minimum_gb: 20
    extra_args: ["--kv-cache-dtype", "fp8"]
    hardware_overrides:
      dgx_spark_gb10:
        extra_args: ["--gpu-memory-utilization", "0.8", "--max-num-seqs", "8", "--default-chat-template-kwargs", '{"enable_thinking": true}']
        extra_env: {VLLM_B: "2"}
compatible_strategies: [single_node_tp]
hardware_overrides: {amd: {extra_args: ["--amd-only"]}, blackwell: {extra_env: {VLLM_C: "3"}}}
"""
SPARKRUN_2 = """
recipe_version: "2"
model: acme/Tiny-30B-FP8
runtime: vllm
container: ghcr.io/acme/vllm:latest
metadata: {description: Tiny on one Spark}
max_nodes: 1
defaults: {port: 8001, host: 0.0.0.0, tensor_parallel: 1, gpu_memory_utilization: 0.8, max_model_len: 4096}
env: {VLLM_MARLIN_USE_ATOMIC_ADD: 1}
command: |
  vllm serve {model} --host {host} --port {port} --max-model-len {max_model_len} \\
    --gpu-memory-utilization {gpu_memory_utilization} -tp {tensor_parallel} --load-format fastsafetensors
"""
EUGR = """
recipe_version: "1"
name: Tiny FP8
model: acme/Tiny-30B-FP8
container: vllm-node
cluster_only: true
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2, gpu_memory_utilization: 0.8}
command: |
  vllm serve acme/Tiny-30B-FP8 --port {port} --host {host} -tp {tensor_parallel} \\
    --gpu-memory-utilization {gpu_memory_utilization} --distributed-executor-backend ray \\
    --compilation-config '{{"cudagraph_mode":"FULL"}}' \\
"""
COMPOSE = """
services:
  web: {image: "nginx:1"}
  llm:
    image: lmsysorg/sglang:v0.5.23
    command: python3 -m sglang.launch_server --model-path acme/Tiny --port 30000 --tp 1 --mem-fraction-static ${FRACTION:-0.7}
    environment: ["HF_TOKEN=${HF_TOKEN:-}", SGLANG_A=1]
    ports: ["8080:30000"]
    volumes: ["~/.cache/huggingface:/root/.cache/huggingface", "./data:/data", "/srv/extra:/extra:ro"]
    ipc: host
    shm_size: 32gb
    privileged: true
    healthcheck: {test: curl -f http://localhost}
"""


def import_recipe(text: str, path: str = "tiny.yaml", name: str = "", **answers: str) -> ImportedRecipe:
    """Import a text as the command does. In a key of answers, `_` stands for a dash and `__` for a dot."""
    report = ImportReport({key.replace("__", ".").replace("_", "-"): value for key, value in answers.items()})
    return recipe_builder.build_recipe(format_detection.parse(text, Path(path), report), name, report, path)


def import_data(text: str, path: str = "tiny.yaml", name: str = "", **answers: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(import_recipe(text, path, name, **answers).text)
    return data


def import_running(settings: Mapping[str, Any], name: str = "", **answers: str) -> ImportedRecipe:
    """Import a container of the host spark1. settings: as the module returns them."""
    report = ImportReport(answers)
    return recipe_builder.build_recipe(container.convert_running(settings, "spark1", report), name, report, "spark1")


def list_questions(text: str) -> list[str]:
    return [question.key for question in import_recipe(text).report.questions]


def format_rows(imported: ImportedRecipe, kind: str = "") -> str:
    """Return the rows of a report, or those of one kind."""
    return "\n".join(f"{row.subject}: {row.reason}" for row in imported.report.rows if kind in ("", row.kind))
