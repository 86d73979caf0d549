"""The rows that llama-benchy prints and Spark Arena accepts: pp2048 and tg128."""

from __future__ import annotations

from sparkwright.bench.results_models import Cell, Results
from sparkwright.errors import Refused

HEAD = (
    "| model | test | t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |",
    "|:------|-----:|----:|----------:|-------------:|--------------:|",
)


def table(results: Results) -> str:
    """Return a pp and a tg row for each measurement of one stream. Raises Refused if there is none.

    Our time to first token is that of the first token, not the first chunk, so it is reported as ttfr too. No latency is
    subtracted.
    """
    cells = [cell for cell in results.cells if cell.kind == "smoke" and cell.verdict == "measured"]
    if not cells:
        raise Refused("there is no measurement of one stream here.", fix="`invoke bench.smoke --spark-arena`.")
    rows = [row for cell in cells for row in _rows(results, cell)]
    return "\n".join([*HEAD, *rows])


def _rows(results: Results, cell: Cell) -> tuple[str, str]:
    arm = results.arm(cell.arm)
    model = arm.model_id or arm.title or results.name
    found = cell.derived
    ttft = _of(cell.figures.ttft_mean_ms)
    prompt, answer = cell.load["prompt_tokens"], cell.load["output_tokens"]
    return (
        f"| {model} | pp{prompt} | {_pair(found, 'prefill_tok_per_s')} | {ttft} | {ttft} | {ttft} |",
        f"| {model} | tg{answer} | {_pair(found, 'decode_tok_per_s')} | | | |",
    )


def _pair(found: dict[str, float], name: str) -> str:
    return f"{found.get(name, 0):.2f} ± {found.get(f'{name}_deviation', 0):.2f}"


def _of(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
