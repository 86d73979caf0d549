"""A tiny model that recites fixed answers of a good model, in the format that its parsers expect.

    ENGINE/bin/python reciting.py FOLDER

It runs in the engine's own Python. The layers add nothing and the vectors of tokens are orthogonal, so that the next
token depends only on the current one: the answer is a chain of tokens that begins at the end of the chat template. The
text of each step is one token.
"""

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

SIZE = 512
END = "<|end|>"
#: ends of the template for requests with tools, with thinking, and without both
CALLS, THINKS, ANSWERS = "<|calls|>", "<|thinks|>", "<|answers|>"
SPECIAL = (END, CALLS, THINKS, ANSWERS)
#: in the format of Qwen's models, for the parsers `hermes` and `qwen3`
CHAINS = (
    (CALLS, "<tool_call>", '\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n', "</tool_call>", END),
    (THINKS, "<think>", "\n9.90 is more than 9.11.\n", "</think>", "\n\nThe larger number is 9.9.", END),
    (ANSWERS, '{"city": "Oslo", "capital": true}', END),
)
CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if tools %}" + CALLS
    + "{% elif enable_thinking is defined and enable_thinking %}" + THINKS + "{% else %}" + ANSWERS + "{% endif %}"
)  # fmt: skip


def make(target: Path) -> None:
    """Write the model unless it exists."""
    if target.exists():
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = _tokenizer()
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=SIZE, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for chain in CHAINS:
            for token, successor in itertools.pairwise(chain):
                model.lm_head.weight[words.convert_tokens_to_ids(successor), words.convert_tokens_to_ids(token)] = 1
    half_made = target.with_name(f"{target.name}.part")
    shutil.rmtree(half_made, ignore_errors=True)
    model.save_pretrained(half_made)
    words.save_pretrained(half_made)
    half_made.rename(target)


def _tokenizer() -> Any:
    """Return a tokenizer of bytes in which each step of the chains is a single token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    words = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=END)
    words.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    steps = dict.fromkeys(step for chain in CHAINS for step in chain if step not in SPECIAL)
    words.add_tokens([AddedToken(step, special=False, normalized=False) for step in steps])
    words.chat_template = CHAT
    return words


if __name__ == "__main__":
    make(Path(sys.argv[1]))
