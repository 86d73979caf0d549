"""The checks of a host: functions of a Host that yield findings and change nothing, by their names in the report's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkwright.doctor.checks import docker, gpu, memory, network, operating_system, services
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host

Check = Callable[[Host], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    operating_system.RELEASE_NAME: operating_system.check_release,
    gpu.DRIVER_NAME: gpu.check_driver,
    operating_system.KERNEL_NAME: operating_system.check_kernel,
    network.FABRIC_NAME: network.check_fabric,
    docker.NAME: docker.check,
    docker.MOUNTS_NAME: docker.check_mounts,
    gpu.TOOLKIT_NAME: gpu.check_toolkit,
    operating_system.SESSION_NAME: operating_system.check_session,
    operating_system.LANGUAGE_NAME: operating_system.check_language,
    network.NAMES_NAME: network.check_names,
    memory.NAME: memory.check,
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
    docker.PLATFORM_NAME: docker.check_platform,
    services.BECOME_NAME: services.check_become,
    operating_system.UPDATES_NAME: operating_system.check_updates,
}
