"""A cell of the lab as results keep it, and in one line."""

from __future__ import annotations

from typing import Any

from sparkwright.measure.workload import Load


def described(wanted: Load) -> dict[str, Any]:
    """The load as results keep it: how many prompts were given, not their words."""
    return {**wanted.to_json(), "prompts": len(wanted.prompts)}


def sentence(cell: dict[str, Any]) -> str:
    """A cell in a line."""
    if cell["verdict"] == "failed":
        return f"every request failed: {'; '.join(cell['notes'])}"
    one = cell["figures"]
    doubt = f" ({cell['verdict']}: {'; '.join(cell['doubts'])})" if cell["doubts"] else ""
    ttft = f", TTFT p50 {one['ttft_p50_ms']:.0f} ms" if "ttft_p50_ms" in one else ""
    gap = f", largest gap {one['largest_gap_ms']:.0f} ms" if one["largest_gap_ms"] else ""
    return f"{one['output_tok_per_s']:.1f} tok/s of {one['streams']} streams{ttft}{gap}{doubt}"
