"""Checks of a host: functions that yield findings about a Host, change nothing and run in parallel.

Importing a check's module registers its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sparkwright.doctor.checks import gpu, memory, network, operating_system, services
from sparkwright.doctor.checks.registration import CHECKS, Check
from sparkwright.doctor.host import Finding, Host
from sparkwright.errors import SparkwrightError

__all__ = ["CHECKS", "gpu", "memory", "network", "operating_system", "run_checks", "services"]

MAX_PARALLEL_CHECKS = 6


def run_checks(host: Host, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """Return the findings in the order of the checks. A check that raises yields an `unknown` finding."""

    def run_check(item: tuple[str, Check]) -> list[Finding]:
        name, check = item
        try:
            return list(check(host))
        except SparkwrightError as error:
            return [Finding(name, "unknown", str(error))]
        except Exception as error:  # a defect in one check must not hide the findings of the others
            return [Finding(name, "unknown", f"internal error in the check: {type(error).__name__}: {error}")]

    with ThreadPoolExecutor(max_workers=MAX_PARALLEL_CHECKS) as pool:
        findings = [finding for results in pool.map(run_check, checks.items()) for finding in results]
    is_sandbox = host.context.machine.sandbox  # a repair would run `sudo` on the laptop
    return [replace(finding, repair="") for finding in findings] if is_sandbox else findings
