"""Sparkwright's table of llama-server's options, checked against --help and the real parser."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from sparkwright.engines.llama_cpp import flags, image, rules
from sparkwright.engines.option_table import Option
from tests.real_llama.ask_parser import query_parser

ROOT = Path(__file__).parents[2]
#: they print something and end the process
EXITING_OPTIONS = frozenset(("usage", "version", "cache-list", "list-devices", "completion-bash"))
#: they would fetch a model
FETCH = frozenset(("fim-qwen-7b-spec", "fim-qwen-14b-spec", *rules.DOWNLOAD_FLAGS))
VALUES = ("abc", "1.5", "7", "-1", "on", "auto", "0", "all", "12k")


def checked_options() -> list[Option]:
    skipped = EXITING_OPTIONS | FETCH | {name for name in flags.TABLE.newest if name.endswith("-default")}
    return [option for name, option in flags.TABLE.newest.items() if name not in skipped]


def test_the_stored_help_matches_the_newer_build() -> None:
    command = [sys.executable, "-m", "tests.real_llama.llama_server", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT).stdout
    kept = (ROOT / f"tests/data/llama.cpp/help-b{flags.NEWEST_BUILD}.txt").read_text()
    assert image.parse_help(printed) == image.parse_help(kept) != {}


def test_values_are_refused_if_the_parser_refuses_them() -> None:
    """Beyond that, a number must be one: the parser takes 1.5 for 1 and 12k for 12."""
    cases = [
        (item, text)
        for item in checked_options()
        if item.kind in ("int", "float", "layers", "on", "json")
        for text in VALUES
    ]
    cases += [
        (item, text)
        for item in checked_options()
        if item.kind == "text" and item.choices
        for text in (*VALUES, *item.choices)
    ]
    answers = query_parser([[case.words[0], text] for case, text in cases])
    let_through, refused_alone = [], []
    for (value, text), answer in zip(cases, answers, strict=True):
        why = flags.check_value(value.name, text)
        if answer is None and not why and not (value.kind in ("int", "float") and flags._FLOAT.fullmatch(text)):
            let_through.append((value.name, text))
        if answer is not None and why:
            refused_alone.append((value.name, text))
    assert let_through == []
    numbers = [pair for pair in refused_alone if pair[1] in ("1.5", "12k")]
    assert [pair for pair in refused_alone if pair not in numbers and not flags.TABLE.newest[pair[0]].limits] == []
    assert ("ctx-size", "12k") in numbers


def test_every_switch_is_rendered_as_the_parser_accepts_it() -> None:
    switches = [item for item in checked_options() if item.kind in ("switch", "bare")]
    cases = [{switch.name: value} for switch in switches for value in (True, False)]
    answers = query_parser([flags.argv(case) for case in cases])
    assert [case for case, answer in zip(cases, answers, strict=True) if answer is None] == []


def test_every_word_of_a_switch_is_accepted() -> None:
    words = [word for item in checked_options() if item.kind in ("switch", "bare") for word in (*item.words, *item.off)]
    assert [
        word for word, answer in zip(words, query_parser([[word] for word in words]), strict=True) if answer is None
    ] == []


def test_a_command_has_the_settings_of_the_recipe_and_the_required_ones() -> None:
    flag_values: dict[str, Any] = {"ctx_size": 8192, "np": 2, "fit": False, "no-warmup": True}
    first, second = query_parser(
        [flags.command("x.gguf", flag_values), flags.command("x.gguf", {"port": 9000, "metrics": False, "lv": 3})]
    )
    assert first is not None and second is not None
    assert (first["n_ctx"], first["n_parallel"], first["fit_params"], first["warmup"]) == (8192, 2, False, False)
    assert (first["hostnames"], first["port"], first["endpoint_metrics"]) == (["0.0.0.0"], 8080, True)
    assert (first["verbosity"], first["offline"]) == (4, True)
    assert (second["port"], second["endpoint_metrics"], second["verbosity"]) == (9000, False, 3)
