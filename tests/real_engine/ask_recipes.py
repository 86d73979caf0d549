"""Checks whether a real vLLM accepts the flags of the shipped recipes; run by the engine's own Python.

    ENGINE/bin/python tests/real_engine/ask_recipes.py < recipes.json

Reads {recipe: {"argv": arguments of `vllm serve`, "config": the model's config.json}} and prints {recipe: {"parser": error,
"model": error}}; an empty text means accepted. parser: the argument parser and the checks after it. model: the configuration class of
the architecture and its registered model.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
from vllm.model_executor.models.registry import ModelRegistry
from vllm.transformers_utils.config import get_config
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Print the engine's errors for each recipe."""
    parser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    recipes = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as models:
        answers = {name: _check_recipe(parser, Path(models, name), **recipe) for name, recipe in recipes.items()}
    print(json.dumps(answers))


def _check_recipe(
    parser: FlexibleArgumentParser, folder: Path, argv: list[str], config: dict[str, Any]
) -> dict[str, str]:
    """Return the engine's errors for one recipe, whose model folder holds only its config."""
    folder.mkdir()
    if config:
        Path(folder, "config.json").write_text(json.dumps(config))
    result = {"parser": _describe_error(_parse, parser, [str(folder), *argv[1:]])}
    return {**result, "model": _describe_error(_load_model, str(folder)) if config else ""}


def _describe_error(ask: Callable[..., object], *arguments: Any) -> str:
    result = io.StringIO()
    try:
        with contextlib.redirect_stderr(result):
            ask(*arguments)
    except (SystemExit, Exception) as error:
        return f"{type(error).__name__}: {error} {result.getvalue()[-300:]}"
    return ""


def _parse(parser: FlexibleArgumentParser, argv: list[str]) -> None:
    arguments = parser.parse_args(["serve", *argv])
    arguments.model = arguments.model_tag  # as `vllm serve` does
    validate_parsed_serve_args(arguments)
    AsyncEngineArgs.from_cli_args(arguments)


def _load_model(folder: str) -> None:
    read = get_config(folder, trust_remote_code=False)
    unknown = [name for name in read.architectures if name not in ModelRegistry.get_supported_archs()]
    assert not unknown, f"no model class for {unknown}"


if __name__ == "__main__":
    main()
