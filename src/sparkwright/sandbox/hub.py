"""A simulated Hugging Face hub that huggingface_hub and hf_transfer can use.

It has the models of the shipped recipes, as files with the same names, generated content and a thousandth of the size.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.http_server import Handler, Server

SHARD_COUNT = 14
SHARD_BYTES = 2_500_000

FP8_CONFIG = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
#: common part of the configs of Qwen3.5 and Qwen3-Next: gated delta nets, and attention in every fourth layer
HYBRID_LAYERS_CONFIG = {
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
QWEN35_CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "quantization_config": FP8_CONFIG,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        **HYBRID_LAYERS_CONFIG,
    },
}
#: a dense model with the same kinds of layers, in bfloat16
QWEN38_CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {"model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, **HYBRID_LAYERS_CONFIG},
}
NEXT_CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "quantization_config": FP8_CONFIG,
    **HYBRID_LAYERS_CONFIG,
}


def _dense_config(architecture: str, model_type: str, max_positions: int) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, "max_position_embeddings": max_positions}


MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-35B-A3B-FP8": QWEN35_CONFIG,
    "Qwen/Qwen3-Coder-Next-FP8": NEXT_CONFIG,
    "Qwen/Qwen3.8-27B": QWEN38_CONFIG,
    "zai-org/GLM-4.7-Flash": _dense_config("Glm4MoeLiteForCausalLM", "glm4_moe_lite", 202752),
    "openai/gpt-oss-120b": _dense_config("GptOssForCausalLM", "gpt_oss", 131072),
    "meta-llama/Llama-3.1-8B-Instruct": _dense_config("LlamaForCausalLM", "llama", 131072),
    "Qwen/Qwen3-Embedding-0.6B": {**_dense_config("Qwen3ForCausalLM", "qwen3", 32768), "hidden_size": 1024},
    "Qwen/Qwen3-1.7B": _dense_config("Qwen3ForCausalLM", "qwen3", 40960),
}
GATED_MODELS = ("meta-llama/Llama-3.1-8B-Instruct",)

#: files of the GGUF repositories
GGUF_FILES: dict[str, tuple[str, ...]] = {
    "ggml-org/gpt-oss-120b-GGUF": tuple(f"gpt-oss-120b-mxfp4-{n:05d}-of-00003.gguf" for n in (1, 2, 3)),
    "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF": tuple(
        f"Qwen3-Coder-30B-A3B-Instruct-{kind}.gguf" for kind in ("Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
    ),
}
#: LoRA adapters in GGUF files: map from repository to architecture of the base model
GGUF_ADAPTERS = {"sandbox-org/gpt-oss-120b-sql-lora-GGUF": "gpt-oss", "sandbox-org/llama-8b-sql-lora-GGUF": "llama"}
GGUF_FILES |= {name: (f"{name.rpartition('/')[2].removesuffix('-GGUF')}-f16.gguf",) for name in GGUF_ADAPTERS}
GGUF_BYTES = 9_000_000

#: chat template with thinking on unless a request turns it off
CHAT_TEMPLATE = (
    "{%- if tools %}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{{ message.role }}: {{ message.content }}{%- endfor %}"
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}<think></think>{%- endif %}"
)
#: chat template with thinking off unless a request turns it on
CHAT_TEMPLATE_WITHOUT_THINKING = CHAT_TEMPLATE.replace(
    "enable_thinking is defined and enable_thinking is false", "not (enable_thinking is defined and enable_thinking)"
)
#: metadata that llama.cpp reads before a model's weights
GGUF_VALUES: dict[str, int | str] = {
    "general.architecture": "gpt-oss",
    "gpt-oss.context_length": 131072,
    "gpt-oss.block_count": 36,
    "gpt-oss.embedding_length": 2880,
    "gpt-oss.attention.head_count": 64,
    "gpt-oss.attention.head_count_kv": 8,
    "gpt-oss.attention.key_length": 64,
    "gpt-oss.attention.value_length": 64,
    "tokenizer.chat_template": CHAT_TEMPLATE_WITHOUT_THINKING,
}

STRANGER_TOKEN = "hf_stranger"  # token of a user without access to the gated models
#: files changed by the second commit, which turns thinking off in the chat template
MOVED_PATHS = ("README.md", "model-00001-of-00014.safetensors", "tokenizer_config.json")
QWEN35_BASE = "Qwen/Qwen3.5-35B-A3B"
#: high bytes of small bfloat16 numbers, half of them negative
SMALL_HIGH_BYTE_TABLE = bytes(0xBC if byte & 1 else 0x3C for byte in range(256))
#: Range header with a single range
BYTE_RANGE_PATTERN = re.compile(r"bytes=(?:(?P<first>[0-9]{1,19})-(?P<last>[0-9]{0,19})|-(?P<suffix>[0-9]{1,19}))")


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter on the hub, for q_proj and o_proj of some layers."""

    base: str
    hidden_size: int
    layers: tuple[int, ...]
    rank: int = 16
    output_size: int = 4096  # outputs of q_proj, inputs of o_proj
    alpha: int = 32
    extras: Mapping[str, Any] = field(default_factory=dict)  # additional keys of adapter_config.json

    @property
    def config(self) -> dict[str, Any]:
        """Content of adapter_config.json: those of peft's keys that sparkwright or vLLM reads."""
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base, "r": self.rank}
        config |= {"lora_alpha": self.alpha, "bias": "none", "use_dora": False, "modules_to_save": None}
        return {**config, "target_modules": ["q_proj", "o_proj"], **self.extras}

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of the tensors by name: A is [rank, inputs], B is [outputs, rank]."""
        shapes = {}
        for layer in self.layers:
            for module, input_size, output_size in (
                ("q_proj", self.hidden_size, self.output_size),
                ("o_proj", self.output_size, self.hidden_size),
            ):
                path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
                shapes[f"{path}.lora_A.weight"] = (self.rank, input_size)
                shapes[f"{path}.lora_B.weight"] = (output_size, self.rank)
        return shapes


ADAPTERS: dict[str, Lora] = {
    "sandbox-org/qwen3.5-35b-sql-lora": Lora(QWEN35_BASE, 2048, (3, 7, 39)),
    "sandbox-org/qwen3.5-35b-law-lora": Lora(QWEN35_BASE, 2048, (3, 39), rank=8),
    "sandbox-org/qwen3.5-35b-wide-lora": Lora(QWEN35_BASE, 2048, (3,), rank=64),
    "sandbox-org/qwen3.5-35b-dora": Lora(QWEN35_BASE, 2048, (3,), extras={"use_dora": True}),
    "sandbox-org/qwen3.8-27b-sql-lora": Lora("Qwen/Qwen3.8-27B", 5120, (3, 63)),
    "sandbox-org/llama-3.1-8b-lora": Lora("meta-llama/Llama-3.1-8B-Instruct", 4096, (0, 31)),
}


@functools.lru_cache(maxsize=64)
def file_content(model: str, path: str, *, moved: bool = False) -> bytes:
    """Return the content of a file, which is the same on every call.

    Args:
        model: name of the repository.
        moved: return the content at the second commit instead of the first.
    """
    if path == "adapter_config.json":
        return json.dumps(ADAPTERS[model].config, indent=2).encode()
    if path == "adapter_model.safetensors":
        return safetensors(ADAPTERS[model].shapes, f"{model}{' moved' if moved else ''}")
    if path == "config.json":
        return json.dumps(MODELS[model], indent=2).encode()
    if path == "model.safetensors.index.json":
        weights = {f"layers.{n}.weight": _shard_name(n) for n in range(1, SHARD_COUNT + 1)}
        return json.dumps({"metadata": {"total_size": SHARD_COUNT * SHARD_BYTES}, "weight_map": weights}).encode()
    if path == "README.md":
        text = f"{model} of the sparkwright sandbox: random bytes, a thousandth of the size.\n"
        return (text + ("Second commit.\n" if moved else "")).encode()
    if path == "tokenizer_config.json":
        return json.dumps(
            {"sandbox": True, "chat_template": CHAT_TEMPLATE_WITHOUT_THINKING if moved else CHAT_TEMPLATE}
        ).encode()
    if path.startswith("tokenizer"):
        return json.dumps({"sandbox": True}).encode()
    if model in GGUF_ADAPTERS and path.endswith(".gguf"):
        metadata = {"general.type": "adapter", "adapter.type": "lora"}
        header = gguf_header({"general.architecture": GGUF_ADAPTERS[model], **metadata})
        return header + hashlib.shake_128(path.encode()).digest(40_000)
    if path.endswith(".gguf"):
        header = gguf_header(GGUF_VALUES)
        return header + hashlib.shake_128(f"{model}/{path}".encode()).digest(GGUF_BYTES - len(header))
    suffix = " moved" if moved and path in MOVED_PATHS else ""
    seed = hashlib.sha256(f"{model}/{path}{suffix}".encode()).digest()
    return hashlib.shake_128(seed).digest(SHARD_BYTES)


def list_files(model: str) -> list[str]:
    """Return the paths of a repository's files."""
    if model in GGUF_FILES:
        return ["README.md", *GGUF_FILES[model]]
    if model in ADAPTERS:  # including typical leftovers of training
        return ["README.md", "adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "tokenizer.json"]
    small_files = [
        "README.md",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    return small_files + [_shard_name(n) for n in range(1, SHARD_COUNT + 1)]


def commit(model: str, *, moved: bool = False) -> str:
    """Return the hash of the first commit of the main branch, or of the second if `moved`."""
    return hashlib.sha1(f"sandbox {model}{' moved' if moved else ''}".encode()).hexdigest()


def sibling_entry(model: str, path: str, *, moved: bool = False) -> dict[str, Any]:
    """Return a file's entry in the hub's model info."""
    data = file_content(model, path, moved=moved)
    entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": _blob_id(data)}
    if path.endswith((".safetensors", ".gguf")):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
    return entry


def tree_entry(model: str, path: str, *, moved: bool = False) -> dict[str, Any]:
    """Return a file's entry in the hub's file tree."""
    sibling = sibling_entry(model, path, moved=moved)
    entry: dict[str, Any] = {"type": "file", "oid": sibling["blobId"], "size": sibling["size"], "path": path}
    if "lfs" in sibling:
        entry["lfs"] = {"oid": sibling["lfs"]["sha256"], "size": sibling["size"], "pointerSize": 135}
    return entry


def gguf_header(values: Mapping[str, int | float | str | list[str]]) -> bytes:
    """Return the header of a GGUF file without tensors: magic, version 3, counts, metadata. Source: ggml/docs/gguf.md."""

    def encode_text(value: str) -> bytes:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def encode_value(value: int | float | str | list[str]) -> bytes:
        if isinstance(value, list):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(encode_text, value))
        if isinstance(value, str):
            return struct.pack("<I", 8) + encode_text(value)
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    pairs = b"".join(encode_text(key) + encode_value(value) for key, value in values.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + pairs


def safetensors(shapes: Mapping[str, tuple[int, int]], seed: str) -> bytes:
    """Return a safetensors file of small bfloat16 numbers that depend only on the seed. Source: the format's description."""
    header: dict[str, Any] = {}
    end = 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + 2 * rows * columns
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    data = bytearray(hashlib.shake_128(seed.encode()).digest(end))
    data[1::2] = data[1::2].translate(SMALL_HIGH_BYTE_TABLE)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def parse_range(header: str, size: int) -> range | None:
    """Return the range of bytes that a Range header requests (empty if none of them exist), or None for the whole file.

    A missing header requests the whole file. So does an invalid one, which HTTP servers ignore (RFC 9110, section 14.2),
    and one with several ranges, which are not supported.
    """
    match = BYTE_RANGE_PATTERN.fullmatch(header)
    if match is None:
        return None
    if match["suffix"]:
        return range(max(0, size - int(match["suffix"])), size)
    first, last = int(match["first"]), int(match["last"] or size)
    return None if match["last"] and last < first else range(first, min(last + 1, size))


def _shard_name(n: int) -> str:
    return f"model-{n:05d}-of-{SHARD_COUNT:05d}.safetensors"


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """The state of the simulated Hugging Face hub.

    Args:
        should_cut_downloads: returns True if downloads of large files are cut off after half of their bytes.
        is_moved: returns True if the main branch is at the second commit.
    """

    def __init__(
        self, should_cut_downloads: Callable[[], bool] = lambda: False, is_moved: Callable[[], bool] = lambda: False
    ) -> None:
        self.should_cut_downloads = should_cut_downloads
        self.is_moved = is_moved


class HubApi(Handler):
    """The HTTP API of the hub: model info, file trees, and files with byte ranges."""

    @property
    def hub(self) -> Hub:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        match self.parts:
            case ["api", "models", owner, name]:
                self._info(f"{owner}/{name}", "main")
            case ["api", "models", owner, name, "revision", revision]:
                self._info(f"{owner}/{name}", revision)
            case ["api", "models", owner, name, "tree", revision, *folder]:
                self._tree(f"{owner}/{name}", revision, "/".join(folder))
            case [owner, name, "resolve", revision, *path] if path:
                self._file(f"{owner}/{name}", revision, "/".join(path))
            case ["api", "models", *_]:
                self._error(404, "RepoNotFound", "Repository not found")
            case _:
                self._error(404, "EntryNotFound", "Entry not found")

    def _is_second_commit(self, model: str, revision: str) -> bool | None:
        """Return True if a revision is the second commit, False if it is the first, None after an error response."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        commits = {commit(model): False, commit(model, moved=True): True, "main": self.hub.is_moved()}
        if model not in MODELS and model not in GGUF_FILES and model not in ADAPTERS:
            self._error(404 if token else 401, "RepoNotFound", "Repository not found")
        elif model in GATED_MODELS and token in ("", STRANGER_TOKEN):
            reason = (
                "you are not in the authorized list" if token else "You must have access to it and be authenticated"
            )
            self._error(403 if token else 401, "GatedRepo", f"Access to model {model} is restricted: {reason}.")
        elif revision not in commits or (revision == commit(model, moved=True) and not self.hub.is_moved()):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return commits[revision]
        return None

    def _info(self, model: str, revision: str) -> None:
        moved = self._is_second_commit(model, revision)
        if moved is None:
            return
        siblings = [sibling_entry(model, path, moved=moved) for path in list_files(model)]
        info = {
            "id": model,
            "sha": commit(model, moved=moved),
            "private": False,
            "gated": model in GATED_MODELS,
            "sandbox": True,
        }
        self.reply(200, {**info, "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings})

    def _tree(self, model: str, revision: str, folder: str) -> None:
        moved = self._is_second_commit(model, revision)
        if moved is None:
            return
        if folder:  # no repository has subfolders
            self._error(404, "EntryNotFound", "Entry not found")
            return
        self.reply(200, [tree_entry(model, path, moved=moved) for path in list_files(model)])

    def _file(self, model: str, revision: str, path: str) -> None:
        moved = self._is_second_commit(model, revision)
        if moved is None:
            return
        if path not in list_files(model):
            self._error(404, "EntryNotFound", "Entry not found")
            return
        data = file_content(model, path, moved=moved)
        headers = self._file_headers(sibling_entry(model, path, moved=moved), commit(model, moved=moved))
        requested_range = parse_range(self.headers.get("Range", ""), len(data))
        if requested_range is not None and not requested_range:
            self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        body = data if requested_range is None else data[requested_range.start : requested_range.stop]
        headers["Content-Length"] = str(len(body))
        if requested_range is not None:
            headers["Content-Range"] = f"bytes {requested_range.start}-{requested_range.stop - 1}/{len(data)}"
        if self.hub.should_cut_downloads() and self.command == "GET" and len(data) > 100_000:
            self.close_connection = True
            body = body[: len(body) // 2]
        self.reply(200 if requested_range is None else 206, body, headers)

    @staticmethod
    def _file_headers(entry: dict[str, Any], sha: str) -> dict[str, str]:
        """Return the headers for a file. The ETag is the SHA-256 of an LFS file, and the blob id of any other file."""
        etag = f'"{entry["lfs"]["sha256"] if "lfs" in entry else entry["blobId"]}"'
        linked_headers = {"X-Linked-Etag": etag, "X-Linked-Size": str(entry["size"])} if "lfs" in entry else {}
        return {"ETag": etag, "X-Repo-Commit": sha, "Accept-Ranges": "bytes", **linked_headers}

    def _error(self, status: int, code: str, message: str) -> None:
        self.reply(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    Server(parser.parse_args().port, HubApi, Hub()).run()


if __name__ == "__main__":
    main()
