"""A pretend Hugging Face hub that the real huggingface_hub and hf_transfer talk to.

Its models are the shipped recipes' in small: the same files, 1:1000 in size, bytes made on the fly.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.sandbox.web import Handler, Server

SHARDS = 14
SHARD_BYTES = 2_500_000

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
#: of Qwen3.5 and of Qwen3-Next: gated delta nets, and attention in every fourth layer
LAYERS = {
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
    "quantization_config": FP8,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        **LAYERS,
    },
}
#: a model with this one's layers, in bfloat16
QWEN38_CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {"model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, **LAYERS},
}
NEXT_CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "quantization_config": FP8,
    **LAYERS,
}


def _dense(architecture: str, model_type: str, positions: int) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, "max_position_embeddings": positions}


MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-35B-A3B-FP8": QWEN35_CONFIG,
    "Qwen/Qwen3-Coder-Next-FP8": NEXT_CONFIG,
    "Qwen/Qwen3.8-27B": QWEN38_CONFIG,
    "zai-org/GLM-4.7-Flash": _dense("Glm4MoeLiteForCausalLM", "glm4_moe_lite", 202752),
    "openai/gpt-oss-120b": _dense("GptOssForCausalLM", "gpt_oss", 131072),
    "meta-llama/Llama-3.1-8B-Instruct": _dense("LlamaForCausalLM", "llama", 131072),
    "Qwen/Qwen3-Embedding-0.6B": {**_dense("Qwen3ForCausalLM", "qwen3", 32768), "hidden_size": 1024},
    "Qwen/Qwen3-1.7B": _dense("Qwen3ForCausalLM", "qwen3", 40960),
}
GATED = ("meta-llama/Llama-3.1-8B-Instruct",)

#: repositories of GGUF files, by their files; sizes are a thousandth as well
GGUF: dict[str, tuple[str, ...]] = {
    "ggml-org/gpt-oss-120b-GGUF": tuple(f"gpt-oss-120b-mxfp4-{n:05d}-of-00003.gguf" for n in (1, 2, 3)),
    "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF": tuple(
        f"Qwen3-Coder-30B-A3B-Instruct-{kind}.gguf" for kind in ("Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
    ),
}
GGUF_BYTES = 9_000_000
#: what llama.cpp reads of a model before its weights
GGUF_VALUES: dict[str, int | str] = {
    "general.architecture": "gpt-oss",
    "gpt-oss.context_length": 131072,
    "gpt-oss.block_count": 36,
    "gpt-oss.embedding_length": 2880,
    "gpt-oss.attention.head_count": 64,
    "gpt-oss.attention.head_count_kv": 8,
    "gpt-oss.attention.key_length": 64,
    "gpt-oss.attention.value_length": 64,
}

STRANGER = "hf_stranger"  # a token whose owner was not granted the gated models
#: what the second commit changes; of the chat template, what thinking is by default
MOVED_PATHS = ("README.md", "model-00001-of-00014.safetensors", "tokenizer_config.json")


#: of its chats: thinking is on unless a request turns it off
TEMPLATE = (
    "{%- if tools %}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{{ message.role }}: {{ message.content }}{%- endfor %}"
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}<think></think>{%- endif %}"
)
#: thinking is off unless a request turns it on
TEMPLATE_OFF = TEMPLATE.replace(
    "enable_thinking is defined and enable_thinking is false", "not (enable_thinking is defined and enable_thinking)"
)
GGUF_VALUES["tokenizer.chat_template"] = TEMPLATE_OFF


@functools.lru_cache(maxsize=64)
def content(model: str, path: str, *, moved: bool = False) -> bytes:
    """The bytes of a file, always the same. moved: at the second commit."""
    if path == "config.json":
        return json.dumps(MODELS[model], indent=2).encode()
    if path == "model.safetensors.index.json":
        weights = {f"layers.{n}.weight": _shard(n) for n in range(1, SHARDS + 1)}
        return json.dumps({"metadata": {"total_size": SHARDS * SHARD_BYTES}, "weight_map": weights}).encode()
    if path == "README.md":
        about = f"{model} of the sparkwright sandbox: random bytes, a thousandth of the size.\n"
        return (about + ("Second commit.\n" if moved else "")).encode()
    if path == "tokenizer_config.json":
        return json.dumps({"sandbox": True, "chat_template": TEMPLATE_OFF if moved else TEMPLATE}).encode()
    if path.startswith("tokenizer"):
        return json.dumps({"sandbox": True}).encode()
    if path.endswith(".gguf"):
        head = gguf_header(GGUF_VALUES)
        return head + hashlib.shake_128(f"{model}/{path}".encode()).digest(GGUF_BYTES - len(head))
    second = " moved" if moved and path in MOVED_PATHS else ""
    seed = hashlib.sha256(f"{model}/{path}{second}".encode()).digest()
    return hashlib.shake_128(seed).digest(SHARD_BYTES)


def files(model: str) -> list[str]:
    """The files of a model."""
    if model in GGUF:
        return ["README.md", *GGUF[model]]
    small = ["README.md", "config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
    return small + [_shard(n) for n in range(1, SHARDS + 1)]


def commit(model: str, *, moved: bool = False) -> str:
    """A commit of its main branch: the first, or the one after."""
    return hashlib.sha1(f"sandbox {model}{' moved' if moved else ''}".encode()).hexdigest()


def sibling(model: str, path: str, *, moved: bool = False) -> dict[str, Any]:
    """Return a file's entry in the hub's model info."""
    data = content(model, path, moved=moved)
    row: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": _blob(data)}
    if path.endswith((".safetensors", ".gguf")):
        row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
    return row


def branch(model: str, path: str, *, moved: bool = False) -> dict[str, Any]:
    """A file as the tree lists it."""
    about = sibling(model, path, moved=moved)
    row: dict[str, Any] = {"type": "file", "oid": about["blobId"], "size": about["size"], "path": path}
    if "lfs" in about:
        row["lfs"] = {"oid": about["lfs"]["sha256"], "size": about["size"], "pointerSize": 135}
    return row


def gguf_header(values: Mapping[str, int | float | str | list[str]]) -> bytes:
    """The beginning of a GGUF file without tensors: magic, version 3, the counts, the pairs. Source: ggml/docs/gguf.md."""

    def text(given: str) -> bytes:
        return struct.pack("<Q", len(given)) + given.encode()

    def typed(value: int | float | str | list[str]) -> bytes:
        if isinstance(value, list):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    pairs = b"".join(text(key) + typed(value) for key, value in values.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + pairs


def _shard(n: int) -> str:
    return f"model-{n:05d}-of-{SHARDS:05d}.safetensors"


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """The state of the simulated Hugging Face hub.

    Args:
        cut: returns True while every download ends after half its bytes.
        moved: returns True once main is at the second commit.
    """

    def __init__(self, cut: Callable[[], bool] = lambda: False, moved: Callable[[], bool] = lambda: False) -> None:
        self.cut = cut
        self.moved = moved


class HubApi(Handler):
    """The hub over HTTP: model info, trees, HEAD and GET with Range."""

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

    def _known(self, model: str, revision: str) -> bool | None:
        """Return True if a revision is the second commit, False if it is the first, None if the request was refused."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        commits = {commit(model): False, commit(model, moved=True): True, "main": self.hub.moved()}
        if model not in MODELS and model not in GGUF:
            self._error(404 if token else 401, "RepoNotFound", "Repository not found")
        elif model in GATED and token in ("", STRANGER):
            who = "you are not in the authorized list" if token else "You must have access to it and be authenticated"
            self._error(403 if token else 401, "GatedRepo", f"Access to model {model} is restricted: {who}.")
        elif revision not in commits or (revision == commit(model, moved=True) and not self.hub.moved()):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return commits[revision]
        return None

    def _info(self, model: str, revision: str) -> None:
        moved = self._known(model, revision)
        if moved is None:
            return
        rows = [sibling(model, path, moved=moved) for path in files(model)]
        info = {
            "id": model,
            "sha": commit(model, moved=moved),
            "private": False,
            "gated": model in GATED,
            "sandbox": True,
        }
        self.reply(200, {**info, "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": rows})

    def _tree(self, model: str, revision: str, folder: str) -> None:
        moved = self._known(model, revision)
        if moved is None:
            return
        if folder:  # its files all stand at the top
            self._error(404, "EntryNotFound", "Entry not found")
            return
        self.reply(200, [branch(model, path, moved=moved) for path in files(model)])

    def _file(self, model: str, revision: str, path: str) -> None:
        moved = self._known(model, revision)
        if moved is None:
            return
        if path not in files(model):
            self._error(404, "EntryNotFound", "Entry not found")
            return
        data = content(model, path, moved=moved)
        headers = self._about(sibling(model, path, moved=moved), commit(model, moved=moved))
        span = self._range(len(data))
        if span is None:
            self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        part = data[span[0] : span[1] + 1]
        headers["Content-Length"] = str(len(part))
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {span[0]}-{span[1]}/{len(data)}"
        if self.hub.cut() and self.command == "GET" and len(data) > 100_000:
            self.close_connection = True
            part = part[: len(part) // 2]
        self.reply(206 if "Range" in self.headers else 200, part, headers)

    @staticmethod
    def _about(row: dict[str, Any], sha: str) -> dict[str, str]:
        """The headers of a file: its etag is its sha256 when it is stored as LFS, else its blob's Id."""
        etag = f'"{row["lfs"]["sha256"] if "lfs" in row else row["blobId"]}"'
        linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(row["size"])} if "lfs" in row else {}
        return {"ETag": etag, "X-Repo-Commit": sha, "Accept-Ranges": "bytes", **linked}

    def _range(self, size: int) -> tuple[int, int] | None:
        """The first and the last byte that are asked for; None when there are no such."""
        given = self.headers.get("Range", "")
        if not given.startswith("bytes="):
            return 0, size - 1
        first, _, last = given[6:].partition("-")
        if not first:
            return max(0, size - int(last)), size - 1
        return None if int(first) >= size else (int(first), min(int(last), size - 1) if last else size - 1)

    def _error(self, status: int, code: str, message: str) -> None:
        self.reply(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    Server(parser.parse_args().port, HubApi, Hub()).run()


if __name__ == "__main__":
    main()
