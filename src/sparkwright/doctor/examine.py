"""All checks of a host, in parallel: most of them wait for another program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sparkwright.doctor.checks import CHECKS, Check
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.errors import SparkwrightError

AT_ONCE = 6


def examine(host: Host, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """Return the findings in the order of the checks. A check that raises is `unknown`, and hides no other."""

    def one(named: tuple[str, Check]) -> list[Finding]:
        name, check = named
        try:
            return list(check(host))
        except SparkwrightError as error:
            return [Finding(name, "unknown", str(error))]
        except Exception as error:  # an unexpected error must not hide the other checks
            return [Finding(name, "unknown", f"internal error in the check: {type(error).__name__}: {error}")]

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        found = [finding for findings in pool.map(one, checks.items()) for finding in findings]
    pretended = host.context.machine.sandbox  # its `sudo` would be this machine's
    return [replace(finding, repair="") for finding in found] if pretended else found


def sentence(findings: Sequence[Finding]) -> str:
    """Return the number of findings that are bad, warnings, unknown and ok, as one sentence."""
    counts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counts[word]} {word}" for word in ("bad", "warning", "unknown", "ok") if counts[word])
