"""A GGUF model that loads in a tenth of a second: a llama with random weights whose tokens are single bytes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="tests/real_llama/requirements.txt is not installed")

TRAINED_CONTEXT = 8192
FILE_NAME = "tiny-llama.gguf"
CONTROL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ 'assistant' if message.role == 'assistant' else 'user' }}|>{{ message.content }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model."""

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    #: dimension of a head
    head: int = 32
    #: dimension of the feed-forward layers
    inner: int = 128
    #: size of the attention window in three of four layers (a cohere2); 0 for a llama without windows
    window: int = 0

    @property
    def width(self) -> int:
        return self.heads * self.head


def write_model(path: Path, shape: Shape = Shape(), context: int = TRAINED_CONTEXT) -> Path:
    """Write a model, with the same bytes for the same shape and context. Returns the path."""
    writer = gguf.GGUFWriter(path, "cohere2" if shape.window else "llama")
    writer.add_name("tiny llama")
    writer.add_context_length(context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    if shape.window:
        writer.add_layer_norm_eps(1e-5)
        writer.add_logit_scale(1.0)
        writer.add_sliding_window(shape.window)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_weights(writer, shape, _add_vocabulary(writer))
    _write(writer)
    return path


def write_adapter(path: Path, shape: Shape = Shape(), architecture: str = "llama", rank: int = 4) -> Path:
    """Write a LoRA adapter for the model of this shape that changes its answers. Returns the path."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 40.0 * rank)
    rng = np.random.default_rng(1)
    for block in range(shape.layers):
        for module in ("attn_q", "attn_output"):
            for side in ("lora_a", "lora_b"):
                rows, columns = (rank, shape.width) if side == "lora_a" else (shape.width, rank)
                matrix = (rng.standard_normal((rows, columns)) * 0.1).astype(np.float32)
                writer.add_tensor(f"blk.{block}.{module}.weight.{side}", matrix)
    _write(writer)
    return path


def _write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any) -> int:
    """Add a token for each byte, and a pair, because the list of merges can't be empty. Returns the number of tokens."""
    tokens = [*_list_byte_letters(), "th", *CONTROL]
    plain, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in CONTROL else plain for token in tokens])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_bos_token_id(tokens.index("<|end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def _list_byte_letters() -> list[str]:
    """Return GPT-2's letter for each byte: itself if it is printable, else a letter from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _add_weights(writer: Any, shape: Shape, tokens: int) -> None:
    rng = np.random.default_rng(0)
    width, kv_width = shape.width, shape.kv_heads * shape.head

    def add_matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", (rng.standard_normal((rows, columns)) * 0.05).astype(np.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    add_matrix("token_embd", tokens, width)
    add_norm("output_norm")
    if not shape.window:
        add_matrix("output", tokens, width)
    for block in (f"blk.{number}" for number in range(shape.layers)):
        add_norm(f"{block}.attn_norm")
        add_matrix(f"{block}.attn_q", width, width)
        add_matrix(f"{block}.attn_k", kv_width, width)
        add_matrix(f"{block}.attn_v", kv_width, width)
        add_matrix(f"{block}.attn_output", width, width)
        if not shape.window:
            add_norm(f"{block}.ffn_norm")
        add_matrix(f"{block}.ffn_gate", shape.inner, width)
        add_matrix(f"{block}.ffn_up", shape.inner, width)
        add_matrix(f"{block}.ffn_down", width, shape.inner)
