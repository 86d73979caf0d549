"""The checks of a host, which run in parallel: functions of a Host that yield findings and change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sparkwright.doctor.checks import gpu, memory, network, operating_system, services
from sparkwright.doctor.host import Finding, Host
from sparkwright.errors import SparkwrightError

Check = Callable[[Host], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    operating_system.RELEASE_NAME: operating_system.check_release,
    gpu.DRIVER_NAME: gpu.check_driver,
    operating_system.KERNEL_NAME: operating_system.check_kernel,
    network.FABRIC_NAME: network.check_fabric,
    services.DOCKER_NAME: services.check_docker,
    services.MOUNTS_NAME: services.check_mounts,
    services.CONTAINERS_NAME: services.check_containers,
    gpu.TOOLKIT_NAME: gpu.check_toolkit,
    operating_system.SESSION_NAME: operating_system.check_session,
    operating_system.LANGUAGE_NAME: operating_system.check_language,
    network.NAMES_NAME: network.check_names,
    memory.BUDGET_NAME: memory.check_memory,
    memory.EARLYOOM_NAME: memory.check_earlyoom,
    memory.SWAP_NAME: memory.check_swap,
    memory.SHM_NAME: memory.check_shm,
    gpu.POWER_NAME: gpu.check_power,
    gpu.HEAT_NAME: gpu.check_heat,
    gpu.IDLE_NAME: gpu.check_idle,
    memory.DISK_NAME: memory.check_disk,
    operating_system.CLOCK_NAME: operating_system.check_clock,
    network.PORTS_NAME: network.check_ports,
    services.STARTS_NAME: services.check_starts,
    services.OLLAMA_NAME: services.check_ollama,
    services.PLATFORM_NAME: services.check_platform,
    services.BECOME_NAME: services.check_become,
    operating_system.UPDATES_NAME: operating_system.check_updates,
}


MAX_PARALLEL_CHECKS = 6


def run_checks(host: Host, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """Return the findings in the order of the checks. A check that raises is `unknown` and does not hide the others."""

    def run_check(item: tuple[str, Check]) -> list[Finding]:
        name, check = item
        try:
            return list(check(host))
        except SparkwrightError as error:
            return [Finding(name, "unknown", str(error))]
        except Exception as error:  # an unexpected error must not hide the other checks
            return [Finding(name, "unknown", f"internal error in the check: {type(error).__name__}: {error}")]

    with ThreadPoolExecutor(max_workers=MAX_PARALLEL_CHECKS) as pool:
        results = [finding for findings in pool.map(run_check, checks.items()) for finding in findings]
    is_sandbox = host.context.machine.sandbox  # a sandbox's `sudo` would be this machine's
    return [replace(finding, repair="") for finding in results] if is_sandbox else results


def format_counts(findings: Sequence[Finding]) -> str:
    """Return a sentence with the numbers of findings that are bad, warnings, unknown and ok."""
    counts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counts[word]} {word}" for word in ("bad", "warning", "unknown", "ok") if counts[word])
