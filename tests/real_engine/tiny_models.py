"""Creates tiny models with random weights and a trained tokenizer, without a hub.

    ENGINE/bin/python tiny_models.py FOLDER dense gated_delta mamba2 short_conv

It runs in the engine's own Python (torch, transformers), never in sparkwright's. There is a model for each kind of layer.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 8192
WORDS = 1024
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>")
CHAT = (
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)

#: settings of every model
BODY: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT_TOKENS, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of model. family: the class in transformers without "ForCausalLM". own: settings of this family only."""

    family: str
    own: dict[str, Any]


GATED_DELTA: dict[str, Any] = {
    "head_dim": 64, "layer_types": [*["linear_attention"] * 3, "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
}  # fmt: skip
MAMBA2 = {
    "head_dim": 64, "mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64,
    "mamba_chunk_size": 64,
}  # fmt: skip
#: vLLM needs conv_dim and block_dim, which published models have, but not the class of transformers
SHORT_CONV = {
    "layer_types": [*["conv"] * 3, "full_attention"], "conv_L_cache": 3, "conv_dim": 256, "block_dim": 256,
    "block_multiple_of": 64,
}  # fmt: skip
ATTENTION_FREE = {"num_heads": 8, "head_dim": 64, "state_size": 64, "n_groups": 1, "chunk_size": 64}

KINDS: dict[str, Kind] = {
    "dense": Kind("Llama", {"head_dim": 64}),
    "gated_delta": Kind("Qwen3Next", GATED_DELTA),
    "mamba2": Kind("FalconH1", MAMBA2),
    "short_conv": Kind("Lfm2", SHORT_CONV),
    "attention_free": Kind("Mamba2", ATTENTION_FREE),
}


def make(folder: Path, names: list[str]) -> None:
    """Write these models into folder/NAME unless they exist."""
    for name in names:
        if not (folder / name).exists():
            _make_model(folder / name, KINDS[name])
            print(f"made {name}", flush=True)


def _make_model(target: Path, kind: Kind) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    words = _tokenizer()
    tokens = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": words.eos_token_id}
    family = getattr(transformers, f"{kind.family}ForCausalLM")
    config = family.config_class(**BODY, **kind.own, **tokens)
    half_made = target.with_name(f"{target.name}.part")
    shutil.rmtree(half_made, ignore_errors=True)
    model = family(config).to(torch.bfloat16)
    with torch.no_grad():  # a token without text is never the likeliest, otherwise answers would end at once
        model.lm_head.weight[: len(SPECIAL)] = 0
        model.lm_head.weight[len(words) :] = 0
    model.save_pretrained(half_made)
    words.save_pretrained(half_made)
    half_made.rename(target)


def _tokenizer() -> Any:
    """Return a tokenizer trained on the source files of this folder, with a vocabulary of exactly WORDS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=list(SPECIAL), initial_alphabet=letters)
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    trained.train_from_iterator(texts, trainer)
    pad, begin, end = SPECIAL
    words = PreTrainedTokenizerFast(tokenizer_object=trained, pad_token=pad, eos_token=end)
    words.chat_template = CHAT
    words.add_special_tokens({"additional_special_tokens": [begin]})
    return words


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:])
