"""The flags of a running server are parsed from the words of its command."""

import pytest

from sparkwright.engines.flags import Command
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.flags import parse_command


@pytest.mark.parametrize(
    ("words", "model", "parsed_flags"),
    [
        (["--model", "/models/m", "--max-num-seqs", "8"], "/models/m", {"max-num-seqs": 8}),
        (["vllm", "serve", "/models/m", "--enforce-eager"], "/models/m", {"enforce-eager": True}),
        (["/usr/bin/vllm", "serve", "m", "--max_model_len=128k"], "m", {"max-model-len": "128k"}),
        (["m", "--no-enable-prefix-caching", "--lora-modules", "a", "b"], "m", {"enable-prefix-caching": False, "lora-modules": ["a", "b"]}),
        (["m", "--speculative-config", '{"method": "mtp"}'], "m", {"speculative-config": {"method": "mtp"}}),
        ([], "", {}),
    ],
)  # fmt: skip
def test_command_words_are_parsed_as_flags(words: list[str], model: str, parsed_flags: dict[str, object]) -> None:
    assert parse_command(words) == Command(model, parsed_flags)


def test_parsing_reverses_rendering() -> None:
    flag_values = {"max-num-seqs": 8, "enable-chunked-prefill": False, "enforce-eager": True, "middleware": ["a", "b"]}
    assert parse_command(flags.command("/models/m", flag_values)) == Command("/models/m", flag_values)
