"""Stored reports: one file for each release, written by a run of that release."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm.versions import parse

#: of a case, also where they are as usual
ALWAYS = ("model", "flags", "how", "starts", "exit_code")
DATA = Path(__file__).parents[2] / "data" / "engine-agreement"


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case.

    how: "started", or "asked": its arguments went through vLLM up to where the engine would start. settings: those in effect.
    said: of a refusal, the sentence for a user. line: what decided, in the log. not_here: why it can't start on a CPU.
    wrong: what its log was read as, or its clients measured, and is not so.
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
    """options: the shape of each (flag_shapes), "" where it is not known. defaults: of its parser, as Python shows them. architectures: that it has a
    model for. lines: the patterns of LOG that its logs were found to hold. key_shown: whether its log shows the API key. figures: what the clients measured, by case."""

    version: str
    date: str
    torch: str
    #: None where no log stood for it
    key_shown: bool | None
    options: Mapping[str, str]
    defaults: Mapping[str, str]
    cases: Mapping[str, CaseResult]
    architectures: tuple[str, ...]
    lines: tuple[str, ...]
    figures: Mapping[str, str]
    #: the release whose compiled kernels it ran over; "" where they were its own
    kernels: str = ""
    #: environment variables that its source reads, where that was read
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
    """A report from its file."""
    data = json.loads(path.read_text())
    cases = {
        name: CaseResult(**{**did, "wrong": tuple(did.get("wrong", ()))}) for name, did in data.pop("cases").items()
    }
    lists = {name: tuple(data.get(name, ())) for name in ("architectures", "lines", "variables")}
    return Report(**{**data, "cases": cases, **lists})


def save_report(report: Report, folder: Path = DATA) -> Path:
    """Keep a report, one line for each entry, so that two of them can be compared with diff."""
    path = folder / f"{report.version}.json"
    folder.mkdir(parents=True, exist_ok=True)
    data = asdict(report)
    data["cases"] = {name: _drop_defaults(did) for name, did in data["cases"].items()}
    parts = [f" {json.dumps(name)}: {_lines(value)}" for name, value in data.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return path


def _drop_defaults(did: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that have their defaults."""
    defaults = asdict(CaseResult("", "", "", False, None))
    return {name: value for name, value in did.items() if name in ALWAYS or value != defaults[name]}


def _lines(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"\n  {json.dumps(name)}: {json.dumps(value[name])}" for name in sorted(value)) + "\n }"
    if isinstance(value, list | tuple):
        return "[" + ",".join(f"\n  {json.dumps(item)}" for item in value) + "\n ]"
    return json.dumps(value)
