"""Records the options of a real vLLM's parser, and which values it accepts; run by the engine's own Python.

    PYTHONPATH=src ENGINE/bin/python tests/real_engine/ask_parser.py tests/data/vllm-0.32.0

Writes parser.json, with the names, kind and choices of each option, and flag-values.json, with VALUES and a letter for
each value by option: "y" accepted, "p" refused by the parser, "r" refused by the range of a config class's field or
where the value is used.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import vllm.config
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
from vllm.reasoning import ReasoningParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from sparkwright.engines.vllm import flags

#: options that are processed before the parser
LEFT_OUT = ("help", "config", "model")
VALUES: list[Any] = [
    *(True, False, 0, 1, 7, -1, -3, 65535, 65536, 0.5, 1.0, 1.5, -0.5, -1.5),
    *(
        "lots", "", "None", "none", "auto", "AUTO", "32k", "32K", "1.5k", "1.5K", "2T", "3q", "1_000", " 7 ", "7.0",
        "1e3", "nan", "inf",
    ),
    *("a b", "-x", "-", "--port", "-1 2", "fp8", "fp7", "{}", "[1]", '{"a":', "{'a': 1}", '["a", "b"]', '"a"', '{"a": 8k}'),
    *({}, {"a": 1}, {"a": {"b": [1]}}, [], [1], [1, 2], ["a"], ["a", "b"], ["None", "-x"]),
]  # fmt: skip


def main(folder: Path) -> None:
    """Write both files."""
    parser = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    options = {_name(action): action for action in serve._actions if action.option_strings}
    rows = {name: _row(action) for name, action in options.items()}
    rows["reasoning-parser"]["registered"] = sorted(ReasoningParserManager.list_registered())
    ranges = dict(_ranges(set(options)))
    letters: dict[str, str] = {}
    choices: dict[str, dict[str, str]] = {}
    for name, action in options.items():
        if name not in LEFT_OUT:
            verdict = partial(_verdict_letter, parser, name, limits=ranges.get(name))
            letters[name] = "".join(map(verdict, VALUES))
            if action.choices:
                choices[name] = {spelling: verdict(spelling) for spelling in _spellings(action)}
    texts = {name: repr(metadata) for name, metadata in ranges.items()}
    _write(folder / "parser.json", rows)
    _write(folder / "flag-values.json", {"values": VALUES, "letters": letters, "choices": choices, "ranges": texts})


def _name(action: argparse.Action) -> str:
    return next(option_string for option_string in action.option_strings if option_string.startswith("--"))[2:]


def _row(action: argparse.Action) -> dict[str, Any]:
    choices = [str(choice) for choice in action.choices or () if choice is not None]
    names = {"names": action.option_strings, "action": type(action).__name__, "type": _type(action.type)}
    return {**names, "nargs": action.nargs, "choices": choices, "metavar": action.metavar and str(action.metavar)}


def _type(kind: Any) -> str | None:
    """Return the name of a type, followed by the types that it wraps."""
    cells = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    inner = [_type(cell) for cell in cells if callable(cell)]
    return None if kind is None else ":".join([kind.__name__, *filter(None, inner)])


def _ranges(names: set[str]) -> Any:
    """Yield each option that is a field of a config class, with the field's type and limits."""
    classes = (getattr(vllm.config, name) for name in dir(vllm.config))
    nested = ("Speculative", "EPLB", "Profiler", "Attention", "Watermark", "Compilation", "Diffusion", "AuxOutput")
    for item in (item for item in classes if isinstance(item, type) and dataclasses.is_dataclass(item)):
        for name, field in getattr(item, "__pydantic_fields__", {}).items():
            limits = [limit for limit in field.metadata if type(limit).__name__ in ("Ge", "Gt", "Le", "Lt")]
            if limits and name.replace("_", "-") in names and not item.__name__.startswith(nested):
                yield name.replace("_", "-"), Annotated[field.annotation, *limits]


def _verdict_letter(parser: FlexibleArgumentParser, name: str, value: Any, limits: Any) -> str:
    words = flags.argv({name: value})
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            arguments = parser.parse_args(["serve", "model", *words])
    except (SystemExit, Exception):
        return "p"
    got = getattr(arguments, name.replace("-", "_"), None)
    try:
        if limits is not None and got is not None and words:
            TypeAdapter(limits).validate_python(got)
        if name == "port":
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", got))
        if name == "sse-keep-alive-interval":
            validate_parsed_serve_args(arguments)
    except (ValidationError, OverflowError, ValueError):
        return "r"
    return "y"


def _spellings(action: argparse.Action) -> list[str]:
    words = [str(choice) for choice in action.choices or () if choice is not None]
    spellings = [
        *words,
        *(word.upper() for word in words[:2]),
        *(word.replace("_", "-") for word in words if "_" in word),
    ]
    return spellings[:60]


def _write(path: Path, rows: Any) -> None:
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in sorted(rows.items()))
    path.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
