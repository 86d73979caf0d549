"""What a release makes of command lines without starting an engine: the harness's side of ask_release.py."""

from __future__ import annotations

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
#: asked beside the cases: the help that lists the options, and a line without any option
HELP, PLAIN = "(help)", "(plain)"


@dataclass(frozen=True)
class Answer:
    """exit_code, output: of `vllm serve` up to where the engine would start. settings: None where it was refused.
    arguments: what its parser made of the line, each as Python shows it."""

    exit_code: int
    output: str
    settings: Mapping[str, Any] | None
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Answers:
    """by_case: by its name, and those to HELP and PLAIN. architectures: that it has a model for."""

    by_case: Mapping[str, Answer]
    architectures: tuple[str, ...]


def ask(engine: Engine, cases: Sequence[Case]) -> Answers:
    """What it says to all of them, in one process of its own Python."""
    (FOLDER / "switch-off.yaml").write_text(SWITCH_OFF)
    lines = {case.name: argv(case, engine) for case in cases}
    lines |= {HELP: ["--help=all"], PLAIN: ["--model", str(engine.models / "dense")]}
    target = FOLDER / "answers.json"
    subprocess.run(
        [engine.python, SCRIPT, target],
        input=json.dumps(lines),
        text=True,
        env=engine.environment(),
        check=True,
        timeout=WITHIN_S,
    )
    said = json.loads(target.read_text())
    return Answers({name: Answer(**line) for name, line in said["lines"].items()}, tuple(said["architectures"]))


def argv(case: Case, engine: Engine) -> list[str]:
    """A case's words on this machine."""
    return [word.replace("{folder}", str(FOLDER)) for word in case.argv(str(engine.models / case.model))]
