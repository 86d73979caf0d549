"""A value is refused exactly when the real parser of 0.32.0, or the range of its field, refuses it (tests/data)."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import flags, option_values, rules, versions
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL

DATA = Path(__file__).parents[2] / "data/vllm-0.32.0"
PARSER_VERDICTS: dict[str, Any] = json.loads((DATA / "flag-values.json").read_text())
PARSER: dict[str, dict[str, Any]] = json.loads((DATA / "parser.json").read_text())
HELP = option_values.parse_options((DATA / "serve-help-all.txt").read_text())
#: the parser takes it for the beginning of --no-long-prefill-token-threshold-adaptive
ANOTHER = ("long-prefill-token-threshold", False)


def is_refused(name: str, value: Any) -> bool:
    """Return True if the parser or the fields refuse a value; a parser's name is checked later."""
    if "switch" in option_values.known_options()[name].kind:
        return not isinstance(value, bool) and value != []
    misfit = option_values.find_misfit(name, value)
    return misfit is not None and misfit.limit != "name"


@pytest.mark.parametrize("name", sorted(PARSER_VERDICTS["letters"]))
def test_a_value_is_refused_if_the_real_parser_refuses_it(name: str) -> None:
    option = option_values.known_options()[name]
    message = {
        repr(value): letter
        for value, letter in zip(PARSER_VERDICTS["values"], PARSER_VERDICTS["letters"][name], strict=True)
    }
    ours = {repr(value): is_refused(name, value) for value in PARSER_VERDICTS["values"] if (name, value) != ANOTHER}
    differ = {value: message[value] for value, no in ours.items() if no != (message[value] != "y")}
    if option.kind.startswith("object"):  # the names of an object's keys are not known here
        differ = {value: letter for value, letter in differ.items() if ours[value]}
    assert differ == {}


def test_choices_and_their_spellings_match_the_real_parser() -> None:
    rows = [
        (name, word, letter) for name, words in PARSER_VERDICTS["choices"].items() for word, letter in words.items()
    ]
    assert len(rows) > 300
    assert [(name, word) for name, word, letter in rows if is_refused(name, word) != (letter != "y")] == []


def test_the_tables_match_the_real_parser() -> None:
    options = option_values.known_options()
    assert set(PARSER) - set(options) == {"help"}
    listed = {name: row["choices"] for name, row in PARSER.items() if row["choices"]}
    assert {name: set(option.choices) for name, option in options.items() if option.choices} == {
        name: set(choices) for name, choices in listed.items()
    }
    assert list(options["reasoning-parser"].names) == PARSER["reasoning-parser"]["registered"]
    short = {item[1:]: name for name, row in PARSER.items() for item in row["names"] if not item.startswith("--")}
    shorts = {word[1:]: name for name, option in options.items() for word in option.words if not word.startswith("--")}
    assert {**short, "O": "optimization-level"} == {**shorts, "h": "help"}
    fields = {name for name, option in options.items() if option.limits} - {"port", "sse-keep-alive-interval"}
    assert fields == set(PARSER_VERDICTS["ranges"])


def test_an_image_of_the_known_release_has_no_difference() -> None:
    assert option_values.STORED_OPTIONS.difference(HELP) == {"like": "0.32.0", "differ": {}}
    assert option_values.STORED_OPTIONS.restore_options(option_values.STORED_OPTIONS.difference(HELP)) == HELP


def test_the_options_of_another_image_are_restored_from_the_difference() -> None:
    shapes = {name: shape for name, shape in HELP.items() if name != "kda-decode-backend"}
    shapes |= {"brand-new": "word", "kv-cache-dtype": "{auto,fp7}"}
    difference = option_values.STORED_OPTIONS.difference(shapes)
    assert difference["differ"] == {"kda-decode-backend": None, "brand-new": "word", "kv-cache-dtype": "{auto,fp7}"}
    assert option_values.STORED_OPTIONS.restore_options(difference) == shapes
    assert option_values.STORED_OPTIONS.restore_options({**difference, "like": "0.1.0"}) == {}


def check_values(flags: dict[str, Any], version: str | None, image_options: Any = ()) -> list[tuple[str, str]]:
    message = rules.check(rules.VllmRequest(flags), classify(DENSE_MODEL), versions.parse(version), image_options)
    return [(item.severity, item.sentence) for item in message if item.rule == "flag-value"]


@pytest.mark.parametrize(
    ("given", "result"),
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
def test_an_invalid_value_is_an_error(given: dict[str, Any], result: str) -> None:
    ((severity, sentence),) = check_values(given, "0.32.0")
    assert severity == "error" and sentence.startswith(result)


def test_the_nearest_choice_is_offered() -> None:
    message = rules.check(rules.VllmRequest({"kv-cache-dtype": "fp7"}), classify(DENSE_MODEL), versions.parse("0.32.0"))
    (value,) = (item for item in message if item.rule == "flag-value")
    assert value.ways_out[0].text == "write kv-cache-dtype: fp8"


@pytest.mark.parametrize(
    "written, way",
    [
        ("qwen3-coder", "write tool-call-parser: qwen3_coder"),
        ("lama3_json", "write tool-call-parser: llama3_json"),
        ("nemotron_json", "correct or remove it"),  # another model's parser, with the same ending as qwen3_json
    ],
)
def test_a_parser_is_offered_for_a_typo_and_not_for_another_model(written: str, way: str) -> None:
    options = rules.VllmRequest({"tool-call-parser": written, "enable-auto-tool-choice": True})
    message = rules.check(options, classify(DENSE_MODEL), versions.parse("0.32.0"))
    (value,) = (item for item in message if item.rule == "flag-value")
    assert value.severity == "error" and value.ways_out[0].text == way


@pytest.mark.parametrize(
    "given",
    [
        {"max-model-len": "32k", "max-num-batched-tokens": "1.5K", "kv-cache-memory-bytes": "2G"}
        | {"max-num-batched-tokens": "8K"},
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
    assert check_values(given, "0.32.0") == []


@pytest.mark.parametrize(
    ("given", "version", "severity"),
    [
        ({"max-num-seqs": -3}, None, "error"),  # the same in every release looked at
        ({"max-num-seqs": -3}, "0.19.2rc1.dev134", "error"),
        ({"max-model-len": "lots"}, None, "error"),
        ({"tensor-parallel-size": 0}, "0.19.1", "warning"),  # its field has a range since a later one
        ({"kv-cache-dtype": "fp7"}, None, "warning"),
        ({"kv-cache-dtype": "fp7"}, "0.29.0", "warning"),
        ({"reasoning-parser": "qwen33"}, "0.29.0", "warning"),
        ({"reasoning-parser": "somebodys"}, "0.29.0", None),
        ({"max-num-queued-reqs": "lots"}, "0.20.0", "warning"),
    ],
)
def test_a_value_that_another_release_may_accept_is_a_warning(
    given: dict[str, Any], version: str | None, severity: str | None
) -> None:
    assert [value for value, _ in check_values(given, version)] == ([severity] if severity else [])


def test_the_choices_of_the_image_outrank_the_table() -> None:
    shapes = {**HELP, "kv-cache-dtype": "{auto,fp7}", "tool-call-parser": "{mine}*"}
    assert check_values({"kv-cache-dtype": "fp7"}, "0.29.0", shapes) == []
    ((severity, _),) = check_values({"kv-cache-dtype": "fp8"}, "0.29.0", shapes)
    assert severity == "error"
    auto = {"enable-auto-tool-choice": True}
    assert check_values({"tool-call-parser": "mine", **auto}, "0.29.0", shapes) == []
    assert check_values({"tool-call-parser": "hermes", **auto}, "0.29.0", shapes)[0][0] == "error"


@pytest.mark.parametrize(
    ("written", "name", "result"),
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
def test_a_flag_is_found_under_any_spelling(written: dict[str, Any], name: str, result: Any) -> None:
    assert flags.value(flags.normalize(written), name) == result
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
    assert normalized == {
        "gpu-memory-utilization": 0.5,
        "max-model-len": "32k",
        "served-model-name": ["a"],
        "port": [[1]],
    }
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
