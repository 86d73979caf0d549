"""Checks for the GPU: the driver and toolkit, power and temperature, and idle engines that keep it warm."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from sparkwright import defaults
from sparkwright.doctor import known_facts
from sparkwright.doctor.checks.registration import register_check
from sparkwright.doctor.host import FIXES, GB10, Finding, Host, Verdict, find_version, version_tuple
from sparkwright.health.judging.observation import Limits
from sparkwright.health.judging.questions import is_power_starved
from sparkwright.health.record import Gpu
from sparkwright.host import nvidia_smi, settings_table

DRIVER_CHECK = "driver"
LOADED_DRIVER_PATH = "/proc/driver/nvidia/version"
FIRMWARE_FOLDER = "/lib/firmware/nvidia"
DASHBOARD_FIX = "Finish the update in the DGX Dashboard (http://localhost:11000 on the host), then `sudo reboot`."


@register_check(DRIVER_CHECK)
def check_driver(host: Host) -> Iterator[Finding]:
    result = host.run_program(*nvidia_smi.query_command(nvidia_smi.IDENTITY_VALUES))
    loaded_line = next((line for line in (host.read(LOADED_DRIVER_PATH) or "").splitlines() if "NVRM" in line), "")
    loaded_version = find_version(loaded_line.partition("Module")[2])
    if result is not None and "version mismatch" in result.out + result.err:
        evidence = (
            f"nvidia-smi: {(result.out + result.err).strip().splitlines()[0]} (loaded: {loaded_version or 'unknown'})"
        )
        yield Finding(DRIVER_CHECK, "bad", evidence, "sudo reboot", known_facts.DRIVER_PAIR.source)
        return
    gpu = host.gpu()
    if gpu is None:
        evidence = f"nvidia-smi: {(result.out + result.err).strip()[:200]}" if result else "nvidia-smi is not installed"
        verdict: Verdict = "bad" if loaded_version else "unknown"
        yield Finding(
            DRIVER_CHECK, verdict, evidence, DASHBOARD_FIX if loaded_version else "nvidia-smi", known_facts.NVCHECKUP
        )
        return
    yield _driver_finding(*gpu)
    if loaded_line and GB10 in gpu[0] and "Open" not in loaded_line:
        fact = known_facts.OPEN_MODULE
        yield Finding(DRIVER_CHECK, "bad", f"{LOADED_DRIVER_PATH}: {fact.text}", DASHBOARD_FIX, fact.source)
    yield _firmware_finding(gpu[1], loaded_version, host.list_folder(FIRMWARE_FOLDER))


def _driver_finding(name: str, driver: str) -> Finding:
    fact = known_facts.DRIVERS.get(version_tuple(driver)[0]) if version_tuple(driver) else None
    label = f"{name}, driver {driver}"
    if fact is None:
        evidence = f"{label}: not a branch known to sparkwright ({', '.join(map(str, known_facts.DRIVERS))})"
        return Finding(DRIVER_CHECK, "unknown", evidence, source=known_facts.NVCHECKUP)
    if fact.text:
        return Finding(DRIVER_CHECK, "warning", f"{label}: {fact.text}", DASHBOARD_FIX, fact.source)
    return Finding(DRIVER_CHECK, "ok", label, source=fact.source)


def _firmware_finding(driver: str, loaded_version: str, folders: list[str]) -> Finding:
    """Compare the driver's version with the versions of the GSP firmware, which are the names of the firmware's folders."""
    firmware_versions = [
        name for name in folders if find_version(name) == name and version_tuple(name)[0] >= min(known_facts.DRIVERS)
    ]
    source = known_facts.DRIVER_PAIR.source
    if loaded_version and loaded_version != driver:
        evidence = f"driver {driver} is installed and {loaded_version} is loaded"
        return Finding("firmware", "bad", evidence, "sudo reboot", source)
    if driver in firmware_versions:
        return Finding("firmware", "ok", f"driver and GSP firmware are both {driver}", source=source)
    if firmware_versions:
        evidence = f"driver {driver}, GSP firmware {', '.join(firmware_versions)}: {known_facts.DRIVER_PAIR.text}"
        return Finding("firmware", "bad", evidence, DASHBOARD_FIX, source)
    return Finding("firmware", "unknown", f"no driver firmware in {FIRMWARE_FOLDER}", source=source)


TOOLKIT_CHECK = "container toolkit"
HOOK_PATH = "/usr/bin/nvidia-container-runtime-hook"
CONFIGURE_COMMAND = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
#: driver library in a CDI specification; its name ends with the driver's version
DRIVER_LIBRARY_PATTERN = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")


@register_check(TOOLKIT_CHECK)
def check_toolkit(host: Host) -> Iterator[Finding]:
    result = host.run_program("nvidia-ctk", "--version")
    version = find_version(result.out) if result is not None else ""
    runtimes = (host.engine_info() or {}).get("Runtimes") or {}
    has_hook = host.path_exists(HOOK_PATH) or "nvidia" in runtimes
    gpu, source = host.gpu(), known_facts.TOOLKIT.source
    if not version and not has_hook:
        verdict: Verdict = "bad" if gpu else "unknown"
        evidence = f"neither nvidia-ctk nor its hook is installed{'' if gpu else ', and no GPU was found'}"
        yield Finding(TOOLKIT_CHECK, verdict, evidence, "sudo apt install nvidia-container-toolkit", source)
        return
    label = f"NVIDIA Container Toolkit {version or '(unknown version)'}"
    if not has_hook and gpu:
        evidence = f"{label}; not configured as a Docker runtime"
        yield Finding(TOOLKIT_CHECK, "bad", evidence, CONFIGURE_COMMAND, source)
    else:
        yield Finding(TOOLKIT_CHECK, "ok", label, source=source)
    if gpu:
        yield _cdi_finding(host, gpu[1], version)


def _cdi_finding(host: Host, driver: str, toolkit_version: str) -> Finding:
    """Check the CDI specification by the driver version in it, because its date may be that of a copy."""
    fact, driver_versions = known_facts.CDI, _read_cdi_driver_versions(host)
    supports_refresh = version_tuple(toolkit_version) >= known_facts.FIRST_TOOLKIT_WITH_CDI_REFRESH
    has_refresh = supports_refresh and host.read_output("systemctl", "cat", known_facts.CDI_REFRESH_SERVICE) is not None
    fix_name = "CDI service" if has_refresh else "CDI"
    fix = FIXES[fix_name].manual_command(host.user)
    outdated_paths = [path for path, listed_driver in driver_versions.items() if listed_driver not in ("", driver)]
    if outdated_paths:
        path = outdated_paths[0]
        evidence = f"{path} is for driver {driver_versions[path]}, but {driver} is installed: {fact.text}"
        is_generated = path.startswith(("/run", "/var/run")) if has_refresh else path == "/etc/cdi/nvidia.yaml"
        if is_generated:  # the repair writes this file
            return Finding("CDI", "bad", evidence, fix, fact.source, fix_name)
        return Finding("CDI", "bad", evidence, f"sudo nvidia-ctk cdi generate --output={path}", fact.source)
    if matching_paths := [path for path, listed_driver in driver_versions.items() if listed_driver]:
        return Finding("CDI", "ok", f"{', '.join(matching_paths)} is for driver {driver}", source=fact.source)
    if driver_versions:
        return Finding("CDI", "unknown", f"{', '.join(driver_versions)} lists no driver libraries", fix, fact.source)
    return Finding("CDI", "ok", "no CDI specification: `--gpus` uses the toolkit's hook", source=fact.source)


def _read_cdi_driver_versions(host: Host) -> dict[str, str]:
    """Return the driver version in each NVIDIA specification, by path; the version is empty if the specification lists none."""
    driver_versions: dict[str, str] = {}
    for folder in known_facts.CDI_FOLDERS:
        for name in host.list_folder(folder):
            text = host.read(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            if text is not None and "nvidia.com" in text:
                match = DRIVER_LIBRARY_PATTERN.search(text)
                driver_versions[f"{folder}/{name}"] = match[1] if match else ""
    if "/var/run/cdi/nvidia.yaml" in driver_versions:
        driver_versions.pop("/run/cdi/nvidia.yaml", None)  # /var/run is a link to /run on most systems
    return driver_versions


POWER_CHECK = "GPU power"


def gpu_load(host: Host) -> tuple[float, float, float] | None:
    """Return the utilization in percent, the SM clock in MHz and the power in watts; None if one of them is unknown."""
    match tuple(host.gpu_figures(nvidia_smi.LOAD_VALUES).values()):
        case (float(utilization), float(clock), float(power)):
            return utilization, clock, power
    return None


@register_check(POWER_CHECK)
def check_power(host: Host) -> Iterator[Finding]:
    fact, load = known_facts.LOW_POWER, gpu_load(host)
    if load is None:
        evidence = "nvidia-smi does not report utilization, clock and power"
        yield Finding(POWER_CHECK, "unknown", evidence, source=fact.source)
        return
    utilization, clock, power = load
    summary = f"{utilization:.0f} % busy at {clock:.0f} MHz and {power:.0f} W"
    if is_power_starved(Gpu(power_w=power, clock_mhz=clock, utilization_percent=utilization), Limits()):
        fix = "shut down, unplug the power supply for a minute, and start again; a reboot does not help"
        yield Finding(POWER_CHECK, "bad", f"{summary}: {fact.text}", fix, fact.source)
    else:
        yield Finding(POWER_CHECK, "ok", summary, source=fact.source)


HEAT_CHECK = "GPU heat"


def clock_cap_mhz(host: Host) -> int | None:
    """Return the clock cap that `provision` set, or None."""
    match = re.search(
        settings_table.CLOCK_CAP_PATTERN, host.read(settings_table.SETTING_PATHS[settings_table.CLOCK]) or ""
    )
    return int(match[1]) if match else None


@register_check(HEAT_CHECK)
def check_heat(host: Host) -> Iterator[Finding]:
    """Check the GPU's temperature and clock cap.

    Values that the driver does not report ("[N/A]") are skipped. The verdict is unknown without a temperature.
    """
    fact, clock_cap = known_facts.HEAT, clock_cap_mhz(host)
    values = host.gpu_figures(nvidia_smi.HEAT_VALUES)
    celsius, clock = values.get("temperature_c"), values.get("clock_mhz")
    if celsius is None:
        yield Finding(HEAT_CHECK, "unknown", "nvidia-smi does not report the temperature", source=fact.source)
        return
    is_throttled = nvidia_smi.SLOWDOWN_ACTIVE in host.gpu_cells(nvidia_smi.HEAT_VALUES).values()
    summary = f"{celsius:.0f} °C{', thermal throttling' if is_throttled else ''}"
    summary += f", clock cap {clock_cap} MHz" if clock_cap else ", no clock cap"
    if clock_cap and clock is not None and clock > clock_cap + known_facts.CAP_SLACK_MHZ:
        evidence = f"{summary}, which is not in effect: the GPU runs at {clock:.0f} MHz"
        yield Finding(
            HEAT_CHECK, "warning", evidence, f"sudo systemctl restart {settings_table.CLOCK_UNIT}", fact.source
        )
    elif is_throttled or celsius >= defaults.HOT_GPU_C:
        name = host.server.name or "HOST"
        clock_cap_advice = f"a lower clock_cap_mhz than {clock_cap}" if clock_cap else "clock_cap_mhz: 2000"
        fix = (
            f"check fans and room temperature; set {clock_cap_advice} in its vars, then invoke provision --host {name}"
        )
        yield Finding(HEAT_CHECK, "warning", f"{summary}: {fact.text}", fix, fact.source)
    else:
        yield Finding(HEAT_CHECK, "ok", summary, source=fact.source)


IDLE_CHECK = "idle engine"
CPU_SAMPLE_DURATION_S = 0.5
#: fields 14 and 15 of /proc/PID/stat, as indices into the fields after the process name, which may contain spaces
UTIME_FIELD, STIME_FIELD = 11, 12
MAX_PROCESSES = 64


@register_check(IDLE_CHECK)
def check_idle(host: Host) -> Iterator[Finding]:
    fact, load = known_facts.IDLE_SPIN, gpu_load(host)
    rows = host.read_output(*nvidia_smi.PROCESSES_COMMAND)
    gpu_processes = nvidia_smi.parse_processes(rows or "")
    pids = [str(process.pid) for process in gpu_processes.processes][:MAX_PROCESSES]
    if rows is None or (gpu_processes.error and not pids):
        yield Finding(IDLE_CHECK, "unknown", "nvidia-smi could not list the processes", source=fact.source)
    elif not pids:
        yield Finding(IDLE_CHECK, "ok", "no process is using the GPU", source=fact.source)
    elif load is None or load[0] > known_facts.IDLE_PERCENT:
        load_clause = "its utilization is unknown" if load is None else f"the GPU is {load[0]:.0f} % busy"
        yield Finding(
            IDLE_CHECK, "unknown" if load is None else "ok", f"not idle now: {load_clause}", source=fact.source
        )
    else:
        yield _spin_finding(host, pids)


def _spin_finding(host: Host, pids: list[str]) -> Finding:
    fact = known_facts.IDLE_SPIN
    ticks_before = {pid: _cpu_ticks(host, pid) for pid in pids}
    began_s = time.monotonic()
    time.sleep(CPU_SAMPLE_DURATION_S)
    duration_s = time.monotonic() - began_s
    shares = [
        (last_ticks - first_ticks) / os.sysconf("SC_CLK_TCK") / duration_s
        for pid, first_ticks in ticks_before.items()
        if first_ticks is not None and (last_ticks := _cpu_ticks(host, pid)) is not None
    ]
    if not shares:
        evidence = "cannot read the CPU time of the processes that use the GPU"
        return Finding(IDLE_CHECK, "unknown", evidence, source=fact.source)
    summary = f"{max(shares):.0%} of a CPU core while the GPU is idle"
    if max(shares) > known_facts.SPIN_SHARE:
        fix = "invoke lint (names the flag, if there is one)"
        return Finding(IDLE_CHECK, "warning", f"{summary}: {fact.text}", fix, fact.source)
    return Finding(IDLE_CHECK, "ok", summary, source=fact.source)


def _cpu_ticks(host: Host, pid: str) -> int | None:
    """Return a process's CPU time in clock ticks; None if it has exited or is hidden."""
    fields = (host.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return int(fields[UTIME_FIELD]) + int(fields[STIME_FIELD])
    except (IndexError, ValueError):
        return None
