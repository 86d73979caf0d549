"""Checks of the GPU: the driver and toolkit, power and temperature, and idle engines that keep it warm."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from sparkwright import defaults
from sparkwright.doctor import known
from sparkwright.doctor.host import FIXES, GB10, Finding, Host, Verdict, numbers, version_in
from sparkwright.host import nvidia_smi, settings_table

DRIVER_NAME = "driver"
LOADED = "/proc/driver/nvidia/version"
FIRMWARE = "/lib/firmware/nvidia"
DASHBOARD = "Finish the update in the DGX Dashboard (http://localhost:11000 on the host), then `sudo reboot`."


def check_driver(host: Host) -> Iterator[Finding]:
    answer = host.output(*nvidia_smi.query(nvidia_smi.IDENTITY))
    loaded_line = next((line for line in (host.read(LOADED) or "").splitlines() if "NVRM" in line), "")
    loaded = version_in(loaded_line.partition("Module")[2])
    if answer is not None and "version mismatch" in answer.out + answer.err:
        evidence = f"nvidia-smi: {(answer.out + answer.err).strip().splitlines()[0]} (loaded: {loaded or 'unknown'})"
        yield Finding(DRIVER_NAME, "bad", evidence, "sudo reboot", known.DRIVER_PAIR.source)
        return
    gpu = host.gpu()
    if gpu is None:
        words = f"nvidia-smi: {(answer.out + answer.err).strip()[:200]}" if answer else "nvidia-smi is not installed"
        verdict: Verdict = "bad" if loaded else "unknown"
        yield Finding(DRIVER_NAME, verdict, words, DASHBOARD if loaded else "nvidia-smi", known.NVCHECKUP)
        return
    yield _branch(*gpu)
    if loaded_line and GB10 in gpu[0] and "Open" not in loaded_line:
        yield Finding(DRIVER_NAME, "bad", f"{LOADED}: {known.OPEN_MODULE.says}", DASHBOARD, known.OPEN_MODULE.source)
    yield _firmware(gpu[1], loaded, host.names_in(FIRMWARE))


def _branch(name: str, driver: str) -> Finding:
    about = known.DRIVERS.get(numbers(driver)[0]) if numbers(driver) else None
    shown = f"{name}, driver {driver}"
    if about is None:
        newest = ", ".join(map(str, known.DRIVERS))
        evidence = f"{shown}: not a branch known to sparkwright ({newest})"
        return Finding(DRIVER_NAME, "unknown", evidence, source=known.NVCHECKUP)
    if about.says:
        return Finding(DRIVER_NAME, "warning", f"{shown}: {about.says}", DASHBOARD, about.source)
    return Finding(DRIVER_NAME, "ok", shown, source=about.source)


def _firmware(driver: str, loaded: str, folders: list[str]) -> Finding:
    """Compare the driver with its GSP firmware, whose folder is named after its version."""
    firmware = [name for name in folders if version_in(name) == name and numbers(name)[0] >= min(known.DRIVERS)]
    source = known.DRIVER_PAIR.source
    if loaded and loaded != driver:
        evidence = f"driver {driver} is installed and {loaded} is loaded"
        return Finding("firmware", "bad", evidence, "sudo reboot", source)
    if driver in firmware:
        return Finding("firmware", "ok", f"driver and GSP firmware are both {driver}", source=source)
    if firmware:
        evidence = f"driver {driver}, GSP firmware {', '.join(firmware)}: {known.DRIVER_PAIR.says}"
        return Finding("firmware", "bad", evidence, DASHBOARD, source)
    return Finding("firmware", "unknown", f"no driver firmware in {FIRMWARE}", source=source)


TOOLKIT_NAME = "container toolkit"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
#: a library of the driver, whose name ends with the version
LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")


def check_toolkit(host: Host) -> Iterator[Finding]:
    answer = host.output("nvidia-ctk", "--version")
    version = version_in(answer.out) if answer is not None else ""
    runtimes = (host.engine_info() or {}).get("Runtimes") or {}
    hook = host.there(HOOK) or "nvidia" in runtimes
    gpu = host.gpu()
    if not version and not hook:
        verdict: Verdict = "bad" if gpu else "unknown"
        evidence = f"neither nvidia-ctk nor its hook is installed{'' if gpu else ', and no GPU found'}"
        yield Finding(
            TOOLKIT_NAME, verdict, evidence, "sudo apt install nvidia-container-toolkit", known.TOOLKIT.source
        )
        return
    shown = f"NVIDIA Container Toolkit {version or 'of an unknown version'}"
    if not hook and gpu:
        yield Finding(
            TOOLKIT_NAME, "bad", f"{shown}; not configured as a Docker runtime", CONFIGURE, known.TOOLKIT.source
        )
    else:
        yield Finding(TOOLKIT_NAME, "ok", shown, source=known.TOOLKIT.source)
    if gpu:
        yield _cdi(host, gpu[1], version)


def _cdi(host: Host, driver: str, version: str) -> Finding:
    """Check the CDI specification by the driver that it names, because its date may only be that of a copy."""
    specs = _specs(host)
    new = numbers(version) >= known.CDI_REFRESH_SINCE
    refresh = new and host.printed("systemctl", "cat", known.CDI_REFRESH) is not None
    repair = "CDI service" if refresh else "CDI"
    fix = FIXES[repair].manual_command(host.user)
    path, found = next(((path, found) for path, found in specs.items() if found not in ("", driver)), ("", ""))
    if found:
        evidence = f"{path} is for driver {found}, but {driver} is installed: {known.CDI.says}"
        written = path.startswith(("/run", "/var/run")) if refresh else path == "/etc/cdi/nvidia.yaml"
        if written:  # that command writes this file
            return Finding("CDI", "bad", evidence, fix, known.CDI.source, repair)
        return Finding("CDI", "bad", evidence, f"sudo nvidia-ctk cdi generate --output={path}", known.CDI.source)
    if any(specs.values()):
        return Finding("CDI", "ok", f"{', '.join(specs)} is for driver {driver}", source=known.CDI.source)
    if specs:
        return Finding("CDI", "unknown", f"{', '.join(specs)} lists no driver libraries", fix, known.CDI.source)
    return Finding("CDI", "ok", "no CDI specification: `--gpus` uses the toolkit's hook", source=known.CDI.source)


def _specs(host: Host) -> dict[str, str]:
    """Return the paths of NVIDIA's specifications, with the drivers that they name ("" for none)."""
    found: dict[str, str] = {}
    for folder in known.CDI_FOLDERS:
        for name in host.names_in(folder):
            text = host.read(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            if text is not None and "nvidia.com" in text:
                match = LIBRARY.search(text)
                found[f"{folder}/{name}"] = match[1] if match else ""
    if "/var/run/cdi/nvidia.yaml" in found:
        found.pop("/run/cdi/nvidia.yaml", None)  # the same folder on most systems
    return found


POWER_NAME = "GPU power"


def figures(host: Host) -> tuple[float, float, float] | None:
    """Return the utilization in percent, the SM clock in MHz and the power in watts; None if one of them is unknown."""
    match tuple(host.gpu_figures(nvidia_smi.LOAD).values()):
        case (float(used), float(clock), float(power)):
            return used, clock, power
    return None


def check_power(host: Host) -> Iterator[Finding]:
    about, seen = known.LOW_POWER, figures(host)
    if seen is None:
        yield Finding(POWER_NAME, "unknown", "nvidia-smi returned no utilization, clock and power", source=about.source)
        return
    used, clock, power = seen
    shown = f"{used:.0f} % busy at {clock:.0f} MHz and {power:.0f} W"
    if used > known.BUSY_PERCENT and clock < known.LOW_CLOCK_MHZ and power < known.LOW_POWER_W:
        fix = "shut down, unplug the power supply for a minute, and start again; a restart does not help"
        yield Finding(POWER_NAME, "bad", f"{shown}: {about.says}", fix, about.source)
    else:
        yield Finding(POWER_NAME, "ok", shown, source=about.source)


HEAT_NAME = "GPU heat"


def cap_mhz(host: Host) -> int | None:
    """Return the clock cap that `provision` set, or None."""
    found = re.search(settings_table.CAP, host.read(settings_table.PATHS[settings_table.CLOCK]) or "")
    return int(found[1]) if found else None


def check_heat(host: Host) -> Iterator[Finding]:
    """Check the GPU's temperature and clock cap.

    Values that the driver does not report ("[N/A]") are not judged. Without a temperature the result is unknown.
    """
    about, cap = known.HEAT, cap_mhz(host)
    values = host.gpu_figures(nvidia_smi.HEAT)
    celsius, clock = values.get("temperature_c"), values.get("clock_mhz")
    if celsius is None:
        yield Finding(HEAT_NAME, "unknown", "nvidia-smi returned no temperature", source=about.source)
        return
    slowed = nvidia_smi.SLOWED in host.gpu_cells(nvidia_smi.HEAT).values()
    shown = f"{celsius:.0f} °C{', slowed down by heat' if slowed else ''}"
    shown += f", clock cap {cap} MHz" if cap else ", no clock cap"
    if cap and clock is not None and clock > cap + known.CAP_SLACK_MHZ:
        fix = f"sudo systemctl restart {settings_table.CLOCK_UNIT}"
        yield Finding(
            HEAT_NAME, "warning", f"{shown}, which is not in effect: it runs at {clock:.0f} MHz", fix, about.source
        )
    elif slowed or celsius >= defaults.HOT_C:
        name = host.wanted.name or "HOST"
        lower = f"a lower clock_cap_mhz than {cap}" if cap else "clock_cap_mhz: 2000"
        fix = f"check fans and room; {lower} in its vars, then invoke provision --host {name}"
        yield Finding(HEAT_NAME, "warning", f"{shown}: {about.says}", fix, about.source)
    else:
        yield Finding(HEAT_NAME, "ok", shown, source=about.source)


IDLE_NAME = "idle engine"
WINDOW_S = 0.5
#: fields 14 and 15 of /proc/PID/stat, as indices after the name, which may contain spaces
USER, SYSTEM = 11, 12
MOST = 64


def check_idle(host: Host) -> Iterator[Finding]:
    about, seen = known.IDLE_SPIN, figures(host)
    rows = host.printed(*nvidia_smi.PROCESSES)
    listed = nvidia_smi.listed(rows or "")
    pids = [str(process.pid) for process in listed.processes][:MOST]
    if rows is None or (listed.error and not pids):
        yield Finding(IDLE_NAME, "unknown", "nvidia-smi lists no processes", source=about.source)
    elif not pids:
        yield Finding(IDLE_NAME, "ok", "no process is on the GPU", source=about.source)
    elif seen is None or seen[0] > known.IDLE_PERCENT:
        busy = "its utilization is unknown" if seen is None else f"the GPU is {seen[0]:.0f} % busy"
        yield Finding(IDLE_NAME, "unknown" if seen is None else "ok", f"not idle now: {busy}", source=about.source)
    else:
        yield _spinning(host, pids)


def _spinning(host: Host, pids: list[str]) -> Finding:
    about = known.IDLE_SPIN
    before = {pid: _ticks(host, pid) for pid in pids}
    began_s = time.monotonic()
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - began_s
    shares = [
        (after - old) / os.sysconf("SC_CLK_TCK") / took_s
        for pid, old in before.items()
        if old is not None and (after := _ticks(host, pid)) is not None
    ]
    if not shares:
        return Finding(
            IDLE_NAME, "unknown", "the CPU time of the processes on the GPU is not readable", source=about.source
        )
    shown = f"{max(shares):.0%} of a core without a request on the GPU"
    if max(shares) > known.SPIN_SHARE:
        return Finding(
            IDLE_NAME,
            "warning",
            f"{shown}: {about.says}",
            "invoke lint (names the flag, if there is one)",
            about.source,
        )
    return Finding(IDLE_NAME, "ok", shown, source=about.source)


def _ticks(host: Host, pid: str) -> int | None:
    """Return a process's CPU time in clock ticks; None if it is gone or hidden."""
    fields = (host.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return int(fields[USER]) + int(fields[SYSTEM])
    except (IndexError, ValueError):
        return None
