"""The table of llama-server's options, compared with --help and the real parser."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from sparkwright.engines.llama_cpp import flags, image, rules
from sparkwright.engines.option_table import Option
from tests.real_llama.ask_parser import query_parser

ROOT = Path(__file__).parents[2]
#: these print something and exit
EXITING_OPTIONS = frozenset(("usage", "version", "cache-list", "list-devices", "completion-bash"))
#: these would download a model
DOWNLOADING_OPTIONS = frozenset(("fim-qwen-7b-spec", "fim-qwen-14b-spec", *rules.DOWNLOAD_FLAGS))
VALUES = ("abc", "1.5", "7", "-1", "on", "auto", "0", "all", "12k")


def checked_options() -> list[Option]:
    skipped = (
        EXITING_OPTIONS
        | DOWNLOADING_OPTIONS
        | {name for name in flags.TABLE.newest_options if name.endswith("-default")}
    )
    return [option for name, option in flags.TABLE.newest_options.items() if name not in skipped]


def test_the_stored_help_matches_the_newer_build() -> None:
    command = [sys.executable, "-m", "tests.real_llama.llama_server", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT).stdout
    kept = (ROOT / f"tests/data/llama.cpp/help-b{flags.NEWEST_BUILD}.txt").read_text()
    assert image.parse_help(printed) == image.parse_help(kept) != {}


def test_values_are_refused_if_the_parser_refuses_them() -> None:
    """The table also refuses malformed numbers: the parser reads 1.5 as 1 and 12k as 12."""
    cases: list[tuple[Option, str]] = []
    for option in checked_options():
        if option.kind in ("int", "float", "layers", "on", "json"):
            cases += [(option, text) for text in VALUES]
        elif option.kind == "text" and option.choices:
            cases += [(option, text) for text in (*VALUES, *option.choices)]
    answers = query_parser([[option.words[0], text] for option, text in cases])
    wrongly_accepted, stricter = [], []
    for (option, text), answer in zip(cases, answers, strict=True):
        problem = flags.value_problem(option.name, text)
        if (
            answer is None
            and not problem
            and not (option.kind in ("int", "float") and flags._FLOAT_PATTERN.fullmatch(text))
        ):
            wrongly_accepted.append((option.name, text))
        if answer is not None and problem:
            stricter.append((option, text))
    assert wrongly_accepted == []
    assert [(option.name, text) for option, text in stricter if text not in ("1.5", "12k") and not option.limits] == []
    assert ("ctx-size", "12k") in [(option.name, text) for option, text in stricter]


def test_every_switch_is_rendered_as_the_parser_accepts_it() -> None:
    switches = [item for item in checked_options() if item.kind in ("switch", "bare")]
    cases = [{switch.name: value} for switch in switches for value in (True, False)]
    answers = query_parser([flags.argv(case) for case in cases])
    assert [case for case, answer in zip(cases, answers, strict=True) if answer is None] == []


def test_every_word_of_a_switch_is_accepted() -> None:
    words = [word for item in checked_options() if item.kind in ("switch", "bare") for word in (*item.words, *item.off)]
    answers = query_parser([[word] for word in words])
    assert [word for word, answer in zip(words, answers, strict=True) if answer is None] == []


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
