"""docs/engine-agreement.md: every case of one whole run, as it was."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tests.real_engine.agreement import SETTINGS, Outcome
from tests.real_engine.cases import Prediction
from tests.real_engine.engine import PACKAGE, Engine

DOCUMENT = Path(__file__).parents[2] / "docs" / "engine-agreement.md"
#: what people write below this line stays
KEPT = "## What differed"
EVIDENCE_CHARS = 150
WORDS = {
    "chunked_prefill": "chunked prefill",
    "prefix_caching": "prefix caching",
    "mamba_cache_mode": "mamba cache",
    "block_size": "block",
}


def write(outcomes: Sequence[Outcome], engine: Engine, document: Path = DOCUMENT) -> None:
    """The table of these outcomes; the section that people wrote is carried over."""
    before = document.read_text() if document.exists() else ""
    kept = before[before.index(KEPT) :] if KEPT in before else f"{KEPT}\n"
    document.write_text(f"{_head(outcomes)}\n{_table(outcomes, engine)}\n{_figures(outcomes)}\n{kept}")


def _head(outcomes: Sequence[Outcome]) -> str:
    agree = sum(not one.wrong for one in outcomes)
    minutes = sum(one.took_s for one in outcomes) / 60
    return (
        "# What was predicted, and what the real engine did\n\n"
        f"Written by `make test-engine` (docs/testing.md) on {time.strftime('%Y-%m-%d')}; {PACKAGE} with tiny models, started as a recipe's "
        'container would be.\nThe predictions are those of `rules.check` (refused or not) and `predict.effective` (the settings); "nothing" where '
        "the model has no\n`config.json` or the flags are raw words, which no recipe can hold. "
        f"{agree} of {len(outcomes)} cases agree; the starts took {minutes:.0f} minutes. Of a server that started, the settings are its own\n"
        "(`/server_info`), and what `logs.read` made of its log was held against them. Of a refusal: its exit code, and the sentence\nthat a user is shown for it.\n"
    )


def _table(outcomes: Sequence[Outcome], engine: Engine) -> str:
    head = ("case", "model", "flags", "predicted", "what the engine did", "its own line", "s")
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for one in outcomes:
        did = f"starts: {_settings(one.true)}" if one.starts else f"refused ({one.exit_code}): {one.read.failure.value}"
        wrong = "".join(f"<br>**{sentence}**" for sentence in one.wrong)
        said = (
            one.case.name,
            one.case.model,
            f"`{one.case.shown()}`",
            _predicted(one.predicted),
            did + wrong,
            f"`{_line(one)}`",
        )
        cells = [_neutral(cell, engine).replace("|", "\\|") for cell in said]
        rows.append(f"| {' | '.join(cells)} | {one.took_s:.0f} |")
    return "\n".join(rows) + "\n"


def _figures(outcomes: Sequence[Outcome]) -> str:
    lines = [f"* {one.case.name}: {one.health}; {one.figures}" for one in outcomes if one.figures]
    told = "Sparkwright's own clients against the running servers (`verify_health`, `smoke_test`, and both sides' count of tokens):\n\n"
    return told + "\n".join(lines) + "\n"


def _predicted(said: Prediction) -> str:
    if said.starts is None:
        return f"nothing: {said.why}"
    if not said.starts:
        return "refused"
    settings = _settings({name: getattr(said, name) for name in SETTINGS if getattr(said, name) is not None})
    return f"starts: {settings}" + (f" ({said.why})" if said.why else "")


def _settings(values: dict[str, object]) -> str:
    shown = {True: "on", False: "off", None: "unknown"}
    return ", ".join(
        f"{WORDS[name]} {shown.get(value, value) if isinstance(value, bool | None) else value}"
        for name, value in values.items()
    )


def _line(one: Outcome) -> str:
    line = re.sub(r"^\(?\w+ pid=\d+\) ", "", one.evidence()).partition(" [type=")[0]
    dumped = re.search(
        r"enable_prefix_caching=\w+, .*?enable_chunked_prefill=\w+",
        (one.folder / "server.log").read_text(errors="replace"),
    )
    if one.starts and dumped:
        ends = dumped.group(0).split(", ")
        return f"Initializing a V1 LLM engine ... {ends[0]} ... {ends[-1]}"
    return line if len(line) <= EVIDENCE_CHARS else f"{line[:EVIDENCE_CHARS]}..."


def _neutral(text: str, engine: Engine) -> str:
    """Without this machine's folders."""
    return text.replace(str(engine.models), "/models").replace(str(engine.venv), "/opt/engine")
