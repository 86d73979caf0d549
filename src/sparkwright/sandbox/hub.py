"""A pretend Hugging Face hub that the real huggingface_hub and hf_transfer talk to.

Its models are the shipped recipes' in small: the same files, 1:1000 in size, bytes made on the fly.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

from sparkwright.sandbox.web import Handler, Server

SHARDS = 14
SHARD_BYTES = 2_500_000

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN35_CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "quantization_config": FP8,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    },
}
NEXT_CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "quantization_config": FP8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}


def _dense(architecture: str, model_type: str, positions: int) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, "max_position_embeddings": positions}


MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-35B-A3B-FP8": QWEN35_CONFIG,
    "Qwen/Qwen3-Coder-Next-FP8": NEXT_CONFIG,
    "zai-org/GLM-4.7-Flash": _dense("Glm4MoeLiteForCausalLM", "glm4_moe_lite", 202752),
    "openai/gpt-oss-120b": _dense("GptOssForCausalLM", "gpt_oss", 131072),
    "meta-llama/Llama-3.1-8B-Instruct": _dense("LlamaForCausalLM", "llama", 131072),
}
GATED = ("meta-llama/Llama-3.1-8B-Instruct",)


@functools.lru_cache(maxsize=64)
def content(model: str, path: str) -> bytes:
    """The bytes of a file, always the same."""
    if path == "config.json":
        return json.dumps(MODELS[model], indent=2).encode()
    if path == "model.safetensors.index.json":
        weights = {f"layers.{n}.weight": _shard(n) for n in range(1, SHARDS + 1)}
        return json.dumps({"metadata": {"total_size": SHARDS * SHARD_BYTES}, "weight_map": weights}).encode()
    if path == "README.md":
        return f"{model} of the sparkwright sandbox: random bytes, a thousandth of the size.\n".encode()
    if path.startswith("tokenizer"):
        return json.dumps({"sandbox": True}).encode()
    seed = hashlib.sha256(f"{model}/{path}".encode()).digest()
    return hashlib.shake_128(seed).digest(SHARD_BYTES)


def files(model: str) -> list[str]:
    """The files of a model."""
    small = ["README.md", "config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
    return small + [_shard(n) for n in range(1, SHARDS + 1)]


def commit(model: str) -> str:
    """The commit of its main branch."""
    return hashlib.sha1(f"sandbox {model}".encode()).hexdigest()


def sibling(model: str, path: str) -> dict[str, Any]:
    """What the hub says about a file."""
    data = content(model, path)
    row: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": _blob(data)}
    if path.endswith(".safetensors"):
        row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
    return row


def _shard(n: int) -> str:
    return f"model-{n:05d}-of-{SHARDS:05d}.safetensors"


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """cut: whether every file ends after half its bytes."""

    def __init__(self, cut: Callable[[], bool] = lambda: False) -> None:
        self.cut = cut


class HubApi(Handler):
    """The hub over HTTP: model info, HEAD and GET with Range."""

    def route(self) -> None:
        if self.parts[:2] == ["api", "models"] and len(self.parts) >= 4:
            self._info("/".join(self.parts[2:4]), self.parts[5] if len(self.parts) > 5 else "main")
        elif len(self.parts) > 4 and self.parts[2] == "resolve":
            self._file("/".join(self.parts[:2]), self.parts[3], "/".join(self.parts[4:]))
        else:
            self._error(404, "EntryNotFound")

    def _known(self, model: str, revision: str) -> bool:
        if model not in MODELS:
            self._error(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
        elif revision not in ("main", commit(model)):
            self._error(404, "RevisionNotFound")
        elif model in GATED and not self.headers.get("Authorization"):
            self._error(401, "GatedRepo")
        else:
            return True
        return False

    def _info(self, model: str, revision: str) -> None:
        if self._known(model, revision):
            rows = [sibling(model, path) for path in files(model)]
            info = {"id": model, "sha": commit(model), "private": False, "gated": model in GATED, "sandbox": True}
            self.reply(200, {**info, "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": rows})

    def _file(self, model: str, revision: str, path: str) -> None:
        if not self._known(model, revision):
            return
        if path not in files(model):
            self._error(404, "EntryNotFound")
            return
        data, hub = content(model, path), self.server.owner  # type: ignore[attr-defined]
        row = sibling(model, path)
        etag = row["lfs"]["sha256"] if "lfs" in row else row["blobId"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit(model), "Accept-Ranges": "bytes"}
        first, last = self._range(len(data))
        part = data[first : last + 1]
        headers["Content-Length"] = str(len(part))
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        if hub.cut() and self.command == "GET" and len(data) > 100_000:
            self.close_connection = True
            self.reply(206 if "Range" in self.headers else 200, part[: len(part) // 2], headers)
            return
        self.reply(206 if "Range" in self.headers else 200, part, headers)

    def _range(self, size: int) -> tuple[int, int]:
        given = self.headers.get("Range", "")
        if not given.startswith("bytes="):
            return 0, size - 1
        first, _, last = given[6:].partition("-")
        return int(first), min(int(last), size - 1) if last else size - 1

    def _error(self, status: int, code: str) -> None:
        self.reply(status, {"error": code}, {"X-Error-Code": code, "X-Error-Message": f"{code} (sandbox)"})


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    Server(parser.parse_args().port, HubApi, Hub()).run()


if __name__ == "__main__":
    main()
