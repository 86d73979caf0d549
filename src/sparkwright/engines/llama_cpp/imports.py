"""Other people's ways to start llama-server. Sources: scitrera/oss-spark-run@3190eb7; tools/server/README.md of b11434."""

from __future__ import annotations

from sparkwright.engines.imports import Imports
from sparkwright.engines.llama_cpp import flags, http

IMPORTS = Imports(
    image="ghcr.io/ggml-org/llama.cpp:server-cuda13",
    port_inside=http.PORT,
    names=("llama-server", "llama.cpp", "llama-cpp", "llama_cpp"),
    program=("llama-server",),
    host=flags.HOST,
    key=("api-key", "api-key-file"),
    repository="hf-repo",
    repository_file="hf-file",
    files=("chat-template-file", "grammar-file", "lora"),
    further_models={"hf-repo-draft": "", "spec-draft-hf": ""},
    downloads=("model-url", "docker-repo"),
    tokens=("hf-token",),
    one_dash=True,
)
