"""The NVIDIA Container Toolkit, and the CDI specification: is it for the installed driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding, Verdict
from sparkwright.doctor.fixes import FIXES
from sparkwright.doctor.host import Host, numbers, version_in

NAME = "container toolkit"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
#: a library of the driver has its version at its end
LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")


def check(host: Host) -> Iterator[Finding]:
    answer = host.output("nvidia-ctk", "--version")
    version = version_in(answer.out) if answer is not None else ""
    runtimes = (host.engine_info() or {}).get("Runtimes") or {}
    hook = host.there(HOOK) or "nvidia" in runtimes
    gpu = host.gpu()
    if not version and not hook:
        verdict: Verdict = "bad" if gpu else "unknown"
        evidence = f"neither nvidia-ctk nor its hook is installed{'' if gpu else ', and no GPU found'}"
        yield Finding(NAME, verdict, evidence, "sudo apt install nvidia-container-toolkit", known.TOOLKIT.source)
        return
    shown = f"NVIDIA Container Toolkit {version or 'of an unknown version'}"
    if not hook and gpu:
        yield Finding(NAME, "bad", f"{shown}; not configured as a Docker runtime", CONFIGURE, known.TOOLKIT.source)
    else:
        yield Finding(NAME, "ok", shown, source=known.TOOLKIT.source)
    if gpu:
        yield _cdi(host, gpu[1], version)


def _cdi(host: Host, driver: str, version: str) -> Finding:
    """Check the CDI specification by the driver that it names; its date would only be that of a copy."""
    specs = _specs(host)
    new = numbers(version) >= known.CDI_REFRESH_SINCE
    refresh = new and host.printed("systemctl", "cat", known.CDI_REFRESH) is not None
    repair = "CDI service" if refresh else "CDI"
    fix = FIXES[repair].manual_command(host.user)
    path, found = next(((path, found) for path, found in specs.items() if found not in ("", driver)), ("", ""))
    if found:
        evidence = f"{path} is for driver {found}, but {driver} is installed: {known.CDI.says}"
        written = path.startswith(("/run", "/var/run")) if refresh else path == "/etc/cdi/nvidia.yaml"
        if written:  # this very file is written by that command
            return Finding("CDI", "bad", evidence, fix, known.CDI.source, repair)
        return Finding("CDI", "bad", evidence, f"sudo nvidia-ctk cdi generate --output={path}", known.CDI.source)
    if any(specs.values()):
        return Finding("CDI", "ok", f"{', '.join(specs)} is for driver {driver}", source=known.CDI.source)
    if specs:
        return Finding("CDI", "unknown", f"{', '.join(specs)} lists no driver libraries", fix, known.CDI.source)
    return Finding("CDI", "ok", "no CDI specification: `--gpus` uses the toolkit's hook", source=known.CDI.source)


def _specs(host: Host) -> dict[str, str]:
    """Return the path of each specification of nvidia, with the driver that it names ("" for none)."""
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
