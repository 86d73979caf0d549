"""Stored reports, in a file for each release, written by a run of that release."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm.versions import parse

#: fields of a case that are always stored, even with their defaults
ALWAYS = ("model", "flags", "how", "starts", "exit_code")
DATA = Path(__file__).parents[2] / "data" / "engine-agreement"


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case.

    how: "started", or "asked" if the arguments were only processed up to where the engine would start. settings: the
    effective ones. said: the sentence for a user about a refusal. line: the decisive line of the log. not_here: why it
    cannot start on a CPU. wrong: sentences about disagreements.
    """

    model: str
    flags: str
    how: str
    starts: bool
    exit_code: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    line: str = ""
    seconds: int = 0
    not_here: str = ""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The report of a release."""

    version: str
    date: str
    torch: str
    #: whether the log shows the API key; None if unknown
    key_shown: bool | None
    #: the shape of each option, "" if unknown
    options: Mapping[str, str]
    #: defaults of the parser, as Python's repr
    defaults: Mapping[str, str]
    cases: Mapping[str, CaseResult]
    #: the supported architectures
    architectures: tuple[str, ...]
    #: the patterns of LOG that match lines of its logs
    lines: tuple[str, ...]
    #: results of the measuring clients, by case
    figures: Mapping[str, str]
    #: the release whose compiled kernels were used; "" for its own
    kernels: str = ""
    #: environment variables in its source, if it was read
    variables: tuple[str, ...] = ()

    @property
    def of_source(self) -> bool:
        """True if only the release's source was read."""
        return not self.cases


def load_reports(folder: Path = DATA) -> list[Report]:
    """Return all stored reports, oldest release first."""
    loaded = [load_report(path) for path in folder.glob("*.json")]
    return sorted(loaded, key=lambda value: parse(value.version) or parse("0"))  # type: ignore[arg-type, return-value]


def load_report(path: Path) -> Report:
    data = json.loads(path.read_text())
    results = data.pop("cases").items()
    cases = {name: CaseResult(**{**result, "wrong": tuple(result.get("wrong", ()))}) for name, result in results}
    lists = {name: tuple(data.get(name, ())) for name in ("architectures", "lines", "variables")}
    return Report(**{**data, "cases": cases, **lists})


def save_report(report: Report, folder: Path = DATA) -> Path:
    """Store a report with a line for each entry, so that reports can be compared with diff."""
    path = folder / f"{report.version}.json"
    folder.mkdir(parents=True, exist_ok=True)
    data = asdict(report)
    data["cases"] = {name: _drop_defaults(result) for name, result in data["cases"].items()}
    parts = [f" {json.dumps(name)}: {_lines(value)}" for name, value in data.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return path


def _drop_defaults(result: Mapping[str, Any]) -> dict[str, Any]:
    defaults = asdict(CaseResult("", "", "", False, None))
    return {name: value for name, value in result.items() if name in ALWAYS or value != defaults[name]}


def _lines(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"\n  {json.dumps(name)}: {json.dumps(value[name])}" for name in sorted(value)) + "\n }"
    if isinstance(value, list | tuple):
        return "[" + ",".join(f"\n  {json.dumps(item)}" for item in value) + "\n ]"
    return json.dumps(value)
