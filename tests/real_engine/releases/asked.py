"""The results of ask_release.py: how a release processes command lines without starting an engine."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real_engine.cases import Case
from tests.real_engine.engine import FOLDER, Engine
from tests.real_engine.releases.cases import SWITCH_OFF

SCRIPT = Path(__file__).parent / "ask_release.py"
WITHIN_S = 1200.0
#: command lines in addition to the cases: the help, which lists the options, and one without options
HELP, PLAIN = "(help)", "(plain)"


@dataclass(frozen=True)
class Answer:
    """The result of `vllm serve`, stopped where the engine would start."""

    exit_code: int
    output: str
    #: None if the command line was refused
    settings: Mapping[str, Any] | None
    #: the parsed arguments, as Python's repr
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Answers:
    """All answers of a release."""

    #: by the case's name, and for HELP and PLAIN
    by_case: Mapping[str, Answer]
    #: the supported architectures
    architectures: tuple[str, ...]


def query_release(engine: Engine, cases: Sequence[Case]) -> Answers:
    """Return the release's answers to all cases, from a single process of its Python."""
    (FOLDER / "switch-off.yaml").write_text(SWITCH_OFF)
    lines = {case.name: case_arguments(case, engine) for case in cases}
    lines |= {HELP: ["--help=all"], PLAIN: ["--model", str(engine.models / "dense")]}
    target = FOLDER / "answers.json"
    words, environment = [engine.python, SCRIPT, target], engine.environment()
    subprocess.run(words, input=json.dumps(lines), text=True, env=environment, check=True, timeout=WITHIN_S)
    result = json.loads(target.read_text())
    return Answers({name: Answer(**line) for name, line in result["lines"].items()}, tuple(result["architectures"]))


def case_arguments(case: Case, engine: Engine) -> list[str]:
    """Return a case's arguments on this machine."""
    return [word.replace("{folder}", str(FOLDER)) for word in case.argv(str(engine.models / case.model))]
