"""The driver and its GSP firmware, which come in pairs; and the loaded driver against the installed one."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding, Verdict
from sparkwright.doctor.host import GB10, GPU_QUERY, Host, numbers, version_in

NAME = "driver"
LOADED = "/proc/driver/nvidia/version"
FIRMWARE = "/lib/firmware/nvidia"
DASHBOARD = "Finish the update in the DGX Dashboard (http://localhost:11000 on the host), then `sudo reboot`."


def check(host: Host) -> Iterator[Finding]:
    answer = host.output(*GPU_QUERY)
    loaded_line = next((line for line in (host.read(LOADED) or "").splitlines() if "NVRM" in line), "")
    loaded = version_in(loaded_line.partition("Module")[2])
    if answer is not None and "version mismatch" in answer.out + answer.err:
        evidence = f"nvidia-smi: {(answer.out + answer.err).strip().splitlines()[0]} (loaded: {loaded or 'unknown'})"
        yield Finding(NAME, "bad", evidence, "sudo reboot", known.DRIVER_PAIR.source)
        return
    gpu = host.gpu()
    if gpu is None:
        words = f"nvidia-smi: {(answer.out + answer.err).strip()[:200]}" if answer else "nvidia-smi is not installed"
        verdict: Verdict = "bad" if loaded else "unknown"
        yield Finding(NAME, verdict, words, DASHBOARD if loaded else "nvidia-smi", known.NVCHECKUP)
        return
    yield _branch(*gpu)
    if loaded_line and GB10 in gpu[0] and "Open" not in loaded_line:
        yield Finding(NAME, "bad", f"{LOADED}: {known.OPEN_MODULE.says}", DASHBOARD, known.OPEN_MODULE.source)
    yield _firmware(gpu[1], loaded, host.names_in(FIRMWARE))


def _branch(name: str, driver: str) -> Finding:
    about = known.DRIVERS.get(numbers(driver)[0]) if numbers(driver) else None
    shown = f"{name}, driver {driver}"
    if about is None:
        newest = ", ".join(map(str, known.DRIVERS))
        evidence = f"{shown}: not a branch known to sparkwright ({newest})"
        return Finding(NAME, "unknown", evidence, source=known.NVCHECKUP)
    if about.says:
        return Finding(NAME, "warning", f"{shown}: {about.says}", DASHBOARD, about.source)
    return Finding(NAME, "ok", shown, source=about.source)


def _firmware(driver: str, loaded: str, folders: list[str]) -> Finding:
    """Compare the driver with its GSP firmware, which is in a folder of its version."""
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
