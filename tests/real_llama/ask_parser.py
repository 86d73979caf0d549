"""Parse command lines with llama-server's parser: JSON lists on standard input, an answer for each on standard output.

A single process parses all of them, and discards the parser's output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: the parameters that tests compare
PARAMETERS = (
    "n_ctx", "n_parallel", "port", "hostnames", "endpoint_metrics", "fit_params", "kv_unified", "verbosity",
    "offline", "warmup",
)  # fmt: skip


def query_parser(command_lines: Sequence[Sequence[str]]) -> list[dict[str, Any] | None]:
    """Return the parsed parameters of each command line; None for a refused one."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.real_llama.ask_parser"],
        input=json.dumps(command_lines),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-3000:])
    answers: list[dict[str, Any] | None] = json.loads(result.stdout)
    return answers


def main() -> None:
    from tests.real_llama.llama_server import Refused, parse_words

    answers = os.fdopen(os.dup(1), "w")
    discarded = os.open(os.devnull, os.O_WRONLY)
    os.dup2(discarded, 1)
    os.dup2(discarded, 2)
    parsed_lines: list[dict[str, Any] | None] = []
    for words in json.load(sys.stdin):
        try:
            parameters = parse_words(words)
            parsed_lines.append({name: getattr(parameters, name) for name in PARAMETERS})
        except Refused:
            parsed_lines.append(None)
    json.dump(parsed_lines, answers)
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
