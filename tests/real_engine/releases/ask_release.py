"""Records how a real vLLM processes command lines, without starting an engine; run by the engine's own Python.

    echo '{"NAME": ["--model", "/models/dense", ...]}' | ENGINE/bin/python tests/real_engine/releases/ask_release.py ANSWERS.json

Each line goes through vLLM's own `vllm serve` in a forked process, up to where it would start the engine: the parser,
the checks, and the resulting configuration. That takes a second; checks of a started engine are not covered.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli import main as cli
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.model_executor.models.registry import ModelRegistry
from vllm.usage.usage_lib import UsageContext

#: modules that log the arguments, newest first
LOGS_ARGUMENTS = ("vllm.entrypoints.serve.utils.api_utils", "vllm.entrypoints.utils")
#: types of arguments with a readable repr
PLAIN = (str, int, float, bool, list, tuple, dict, type(None))


def main(target: Path) -> None:
    """Write the result of every line, and the supported architectures."""
    lines = {name: run_line(argv) for name, argv in json.load(sys.stdin).items()}
    target.write_text(json.dumps({"lines": lines, "architectures": sorted(ModelRegistry.get_supported_archs())}))


def run_line(argv: list[str]) -> dict[str, Any]:
    """Run `vllm serve ARGV` up to the engine's start. The settings are None if it exited before."""
    with tempfile.TemporaryDirectory() as scratch:
        output, answer_file = Path(scratch, "output"), Path(scratch, "answer")
        child = os.fork()
        if not child:
            _run(argv, output, answer_file)
        _, status = os.waitpid(child, 0)
        return {
            "exit_code": os.waitstatus_to_exitcode(status),
            "output": output.read_text(errors="replace"),
            **(json.loads(answer_file.read_text()) if answer_file.exists() else {"settings": None, "arguments": {}}),
        }


def _run(argv: list[str], output: Path, answer_file: Path) -> None:
    code = 1
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["vllm", "serve", *argv]
    ServeSubcommand.cmd = staticmethod(lambda args: _configure(args, answer_file))
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _configure(args: Any, answer_file: Path) -> None:
    """Compute the configuration as the server does before it starts the engine."""
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    arguments = {name: repr(value) for name, value in vars(args).items() if isinstance(value, PLAIN)}
    _log_arguments(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    cache, scheduler = config.cache_config, config.scheduler_config
    settings = {
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "prefix_caching": cache.enable_prefix_caching,
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", None),
        "max_model_len": config.model_config.max_model_len,
        "memory_utilization": cache.gpu_memory_utilization,
    }
    answer_file.write_text(json.dumps({"settings": settings, "arguments": arguments}))


def _log_arguments(args: Any) -> None:
    for name in LOGS_ARGUMENTS:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(name).log_non_default_args(args)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
