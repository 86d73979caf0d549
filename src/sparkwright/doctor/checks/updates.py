"""Updates, as NVIDIA's own program for a Spark reports them. They are installed with the DGX Dashboard, not by sparkwright."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.visible import one_line

NAME = "updates"
PROGRAM = "nvidia-spark-ota-check"
#: it asks NVIDIA's servers
TIMEOUT_S = 20.0
SHOWN_CHARS = 160


def check(host: Host) -> Iterator[Finding]:
    """Show the program's output without a verdict: its exit codes are not documented."""
    answer = host.output(PROGRAM, timeout_s=TIMEOUT_S)
    if answer is None:
        yield Finding(NAME, "unknown", f"{PROGRAM} is not here, or does not answer", source=known.OTA)
        return
    lines = [line.strip() for line in (answer.out or answer.err).splitlines() if line.strip()]
    words = one_line(lines[-1], at_most=SHOWN_CHARS) if lines else "no output"
    evidence = f"{PROGRAM} (exit {answer.code}): {words}"
    yield Finding(NAME, "ok" if answer.ok else "unknown", evidence, "" if answer.ok else PROGRAM, known.OTA)
