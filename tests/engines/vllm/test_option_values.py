"""Flags and their values, compared with the real parser of 0.32.0 and the ranges of its fields (tests/data)."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.findings import Finding
from sparkwright.engines.flags import Command
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import flags, option_values, rules, versions
from sparkwright.engines.vllm.option_values import STORED_OPTIONS
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL

DATA = Path(__file__).parents[2] / "data/vllm-0.32.0"
PARSER_VERDICTS: dict[str, Any] = json.loads((DATA / "flag-values.json").read_text())
PARSER: dict[str, dict[str, Any]] = json.loads((DATA / "parser.json").read_text())
HELP = option_values.parse_options((DATA / "serve-help-all.txt").read_text())
#: parsed as an abbreviation of --no-long-prefill-token-threshold-adaptive
ABBREVIATION = ("long-prefill-token-threshold", False)


def is_refused(name: str, value: Any) -> bool:
    """Return True if the tables refuse a value; names of reasoning and tool parsers are checked elsewhere."""
    if "switch" in option_values.known_options()[name].kind:
        return not isinstance(value, bool) and value != []
    misfit = option_values.find_invalid_value(name, value)
    return misfit is not None and misfit.limit != "name"


@pytest.mark.parametrize("name", sorted(PARSER_VERDICTS["letters"]))
def test_a_value_is_refused_if_the_real_parser_refuses_it(name: str) -> None:
    option = option_values.known_options()[name]
    verdicts = zip(PARSER_VERDICTS["values"], PARSER_VERDICTS["letters"][name], strict=True)
    differences = []
    for value, letter in verdicts:
        refused = is_refused(name, value)
        # the keys of an object are unknown here, so that it may be accepted
        tolerated = (name, value) == ABBREVIATION or (option.kind.startswith("object") and not refused)
        if refused != (letter != "y") and not tolerated:
            differences.append((value, letter))
    assert differences == []


def test_choices_and_their_spellings_match_the_real_parser() -> None:
    choices = [
        (name, word, letter) for name, words in PARSER_VERDICTS["choices"].items() for word, letter in words.items()
    ]
    assert len(choices) > 300
    assert [(name, word) for name, word, letter in choices if is_refused(name, word) != (letter != "y")] == []


def test_the_tables_match_the_real_parser() -> None:
    options = option_values.known_options()
    assert set(PARSER) - set(options) == {"help"}
    listed = {name: row["choices"] for name, row in PARSER.items() if row["choices"]}
    assert {name: set(option.choices) for name, option in options.items() if option.choices} == {
        name: set(choices) for name, choices in listed.items()
    }
    assert list(options["reasoning-parser"].names) == PARSER["reasoning-parser"]["registered"]
    short = {word[1:]: name for name, row in PARSER.items() for word in row["names"] if not word.startswith("--")}
    known_short = {
        word[1:]: name for name, option in options.items() for word in option.words if not word.startswith("--")
    }
    assert {**short, "O": "optimization-level"} == {**known_short, "h": "help"}
    fields = {name for name, option in options.items() if option.limits} - {"port", "sse-keep-alive-interval"}
    assert fields == set(PARSER_VERDICTS["ranges"])


def test_options_are_restored_from_a_difference() -> None:
    assert STORED_OPTIONS.difference(HELP) == {"like": "0.32.0", "differ": {}}
    assert STORED_OPTIONS.restore_options(STORED_OPTIONS.difference(HELP)) == HELP
    shapes = {name: shape for name, shape in HELP.items() if name != "kda-decode-backend"}
    shapes |= {"brand-new": "word", "kv-cache-dtype": "{auto,fp7}"}
    difference = STORED_OPTIONS.difference(shapes)
    assert difference["differ"] == {"kda-decode-backend": None, "brand-new": "word", "kv-cache-dtype": "{auto,fp7}"}
    assert STORED_OPTIONS.restore_options(difference) == shapes
    assert STORED_OPTIONS.restore_options({**difference, "like": "0.1.0"}) == {}


def check_values(flags: dict[str, Any], version: str | None = "0.32.0", image_options: Any = ()) -> list[Finding]:
    findings = rules.check(rules.VllmRequest(flags), classify(DENSE_MODEL), versions.parse(version), image_options)
    return [finding for finding in findings if finding.rule == "flag-value"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max-num-seqs": -3}, "max-num-seqs must be at least 1, got -3: vLLM 0.32.0 refuses to start."),
        ({"max-model-len": "lots"}, "max-model-len must be a whole number, one with a unit such as 32k, or auto, got 'lots'"),
        ({"kv-cache-dtype": "fp7"}, "kv-cache-dtype must be one of auto,"),
        ({"reasoning-parser": "qwen33"}, "reasoning-parser must be one of"),
        ({"tool-call-parser": "hermess", "enable-auto-tool-choice": True}, "tool-call-parser must be one of"),
        ({"gpu_memory_utilization": 1.5}, "gpu-memory-utilization must be above 0 and at most 1, got 1.5"),
        ({"port": [1, 2]}, "port takes one value, got 2"),
        ({"max-num-seqs": True}, "max-num-seqs needs a value, got true"),
        ({"tp": 0}, "tensor-parallel-size must be at least 1, got 0"),
        ({"served-model-name": "-x"}, "served-model-name can't begin with a dash"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_an_error(given: dict[str, Any], sentence: str) -> None:
    (finding,) = check_values(given)
    assert finding.severity == "error" and finding.sentence.startswith(sentence)


def test_the_nearest_choice_is_offered() -> None:
    (finding,) = check_values({"kv-cache-dtype": "fp7"})
    assert finding.ways_out[0].text == "write kv-cache-dtype: fp8"


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("qwen3-coder", "write tool-call-parser: qwen3_coder"),
        ("lama3_json", "write tool-call-parser: llama3_json"),
        ("nemotron_json", "correct or remove it"),  # another model's parser, with the same ending as qwen3_json
    ],
)
def test_a_parser_is_offered_for_a_typo_and_not_for_another_model(written: str, remedy: str) -> None:
    (finding,) = check_values({"tool-call-parser": written, "enable-auto-tool-choice": True})
    assert finding.severity == "error" and finding.ways_out[0].text == remedy


@pytest.mark.parametrize(
    "given",
    [
        {"max-model-len": "32k", "max-num-batched-tokens": "8K", "kv-cache-memory-bytes": "2G"},
        {"max-model-len": "auto", "seed": -3, "max-logprobs": -1, "max-num-queued-reqs": "None"},
        {"compilation-config": {"level": 3}, "compilation-config.mode": -0.5, "limit-mm-per-prompt": '{"image": 2}'},
        {"served-model-name": ["a", "b"], "served_model_name": "a", "allowed-origins": ["*"], "middleware": ["a", "b"]},
        {"tool-call-parser": "mine"},
        {"tool-call-parser": "mine", "enable-auto-tool-choice": True, "tool-parser-plugin": "/mine.py"},
        {"reasoning-parser": "mine", "reasoning-parser-plugin": "/mine.py"},
        {"moe-backend": "Flashinfer-CUTLASS", "max-lora-rank": 64},
    ],
)
def test_valid_values_are_accepted(given: dict[str, Any]) -> None:
    assert check_values(given) == []


@pytest.mark.parametrize(
    ("given", "version", "severity"),
    [
        ({"max-num-seqs": -3}, None, "error"),  # the same in every known release
        ({"max-num-seqs": -3}, "0.19.2rc1.dev134", "error"),
        ({"max-model-len": "lots"}, None, "error"),
        ({"tensor-parallel-size": 0}, "0.19.1", "warning"),  # only later releases limit it
        ({"kv-cache-dtype": "fp7"}, None, "warning"),
        ({"kv-cache-dtype": "fp7"}, "0.29.0", "warning"),
        ({"reasoning-parser": "qwen33"}, "0.29.0", "warning"),
        ({"reasoning-parser": "somebodys"}, "0.29.0", None),
        ({"max-num-queued-reqs": "lots"}, "0.20.0", "warning"),
    ],
)
def test_an_uncertain_value_is_a_warning(given: dict[str, Any], version: str | None, severity: str | None) -> None:
    assert [finding.severity for finding in check_values(given, version)] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("given", "severities"),
    [
        ({"kv-cache-dtype": "fp7"}, []),
        ({"kv-cache-dtype": "fp8"}, ["error"]),
        ({"tool-call-parser": "mine", "enable-auto-tool-choice": True}, []),
        ({"tool-call-parser": "hermes", "enable-auto-tool-choice": True}, ["error"]),
    ],
)
def test_the_choices_of_the_image_outrank_the_table(given: dict[str, Any], severities: list[str]) -> None:
    shapes = {**HELP, "kv-cache-dtype": "{auto,fp7}", "tool-call-parser": "{mine}*"}
    assert [finding.severity for finding in check_values(given, "0.29.0", shapes)] == severities


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [
        ({"gpu_memory_utilization": 0.8}, "gpu-memory-utilization", 0.8),
        ({"device-memory-utilization": 0.8}, "gpu-memory-utilization", 0.8),
        ({"--max_num_seqs": 8}, "max-num-seqs", 8),
        ({"max-num-seq": 8}, "max-num-seqs", 8),
        ({"tp": 2}, "tensor-parallel-size", 2),
        ({"-dp": 2}, "data-parallel-size", 2),
        ({"no-enable-prefix-caching": True}, "enable-prefix-caching", False),
        ({"no_enable_prefix_caching": False}, "enable-prefix-caching", True),
        ({"disable-prefix-caching": True}, "enable-prefix-caching", False),
        ({"disable-log-stats": True}, "disable-log-stats", True),
        ({"-cc.pass_config.fuse_x": True}, "compilation-config.pass_config.fuse_x", True),
        ({"max-num": 8}, "max-num", 8),
    ],
)
def test_a_flag_is_found_under_any_spelling(written: dict[str, Any], name: str, value: Any) -> None:
    assert flags.value(flags.normalize(written), name) == value
    assert flags.normalize(flags.normalize(written)) == flags.normalize(written)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"headless": False, "disable-log-stats": False}, ()),
        ({"headless": True}, ("--headless",)),
        ({"allowed-origins": ["*", "a"]}, ("--allowed-origins", '["*","a"]')),
        ({"middleware": ["a", "b"]}, ("--middleware", "a", "--middleware", "b")),
        ({"lora-modules": [{"name": "a", "path": "/b"}]}, ("--lora-modules", '{"name":"a","path":"/b"}')),
        ({"compilation_config.pass_config.fuse_x": True}, ("--compilation-config.pass_config.fuse_x", "true")),
        ({"no-enable-prefix-caching": True}, ("--no-enable-prefix-caching",)),
        ({"tp": 2}, ("--tensor-parallel-size", "2")),
    ],
)
def test_values_are_rendered_for_the_real_parser(given: dict[str, Any], words: tuple[str, ...]) -> None:
    assert flags.argv(given) == words


def test_a_list_with_one_value_is_that_value() -> None:
    written = {"gpu-memory-utilization": [0.5], "max_model_len": ["32k"], "served-model-name": ["a"], "port": [[1]]}
    normalized = flags.normalize(written)
    single_values = {"gpu-memory-utilization": 0.5, "max-model-len": "32k"}
    assert normalized == {**single_values, "served-model-name": ["a"], "port": [[1]]}
    assert flags.memory_share(normalized) == 0.5 and flags.argv(written)[:2] == ("--gpu-memory-utilization", "0.5")


@pytest.mark.parametrize("given", [[], [[1]], ["a", "b"], {}, {"a": 1}])
def test_values_of_any_type_are_checked(given: Any) -> None:
    for name in option_values.known_options():
        written = flags.normalize({name: given})
        rules.check(rules.VllmRequest(written), classify(DENSE_MODEL), versions.parse("0.32.0"))
        assert flags.argv(written) == flags.argv({name: given})


def test_an_empty_list_sets_nothing() -> None:
    normalized = flags.normalize({"gpu-memory-utilization": [], "load-format": []})
    assert flags.argv(normalized) == () and flags.memory_share(normalized) is None


@pytest.mark.parametrize(("given", "port"), [([8001], 8001), ([], 8000), ([[1]], 8000), ({"a": 1}, 8000), (None, 8000)])
def test_a_port_of_any_type_is_read_or_ignored(given: Any, port: int) -> None:
    assert flags.port({"port": given}) == port


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
    assert flags.parse_command(words) == Command(model, parsed_flags)


def test_parsing_reverses_rendering() -> None:
    flag_values = {"max-num-seqs": 8, "enable-chunked-prefill": False, "enforce-eager": True, "middleware": ["a", "b"]}
    assert flags.parse_command(flags.command("/models/m", flag_values)) == Command("/models/m", flag_values)
