"""Checks of the operating system: release, kernel, updates, clock, and logins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.host import FIXES, GB10, Finding, Host, Verdict, numbers
from sparkwright.units import gib
from sparkwright.visible import one_line

RELEASE_NAME = "DGX OS"
DASHBOARD = "Update it in the DGX Dashboard (http://localhost:11000 on the host)."


def check_release(host: Host) -> Iterator[Finding]:
    release = host.assignments("/etc/dgx-release")
    gpu = host.gpu()
    if not release:
        system = host.assignments("/etc/os-release").get("PRETTY_NAME", "an unknown system")
        if gpu and GB10 in gpu[0]:
            evidence = f"{system} without /etc/dgx-release: not the factory system"
            yield Finding(RELEASE_NAME, "warning", evidence, source=known.NVCHECKUP)
        else:
            yield Finding(RELEASE_NAME, "unknown", f"{system}, no GB10 found: is this a DGX Spark?")
        return
    build, update = release.get("DGX_SWBUILD_VERSION", ""), release.get("DGX_OTA_VERSION", "")
    yield _release(update or build, f"DGX OS {build or '?'}, OTA {update or 'none'}")
    if gpu and GB10 in gpu[0]:
        yield from _memory(host, update or build)


def _release(version: str, evidence: str) -> Finding:
    if not version:
        return Finding(RELEASE_NAME, "unknown", "no version in /etc/dgx-release", "cat /etc/dgx-release")
    newest = list(known.RELEASES)[-1]
    source = known.RELEASES.get(version, known.RELEASES[newest]).source
    if numbers(version)[0] < known.RELEASE_MAJOR:
        return Finding(RELEASE_NAME, "bad", f"{evidence}: older than DGX OS {known.RELEASE_MAJOR}", DASHBOARD, source)
    if numbers(version) > numbers(newest):
        return Finding(RELEASE_NAME, "unknown", f"{evidence}: newer than {newest}, the newest known to sparkwright")
    return Finding(RELEASE_NAME, "ok", evidence, source=source)


def _memory(host: Host, version: str) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None:
        yield Finding("memory", "unknown", "cannot read /proc/meminfo")
        return
    total = memory["MemTotal"]
    shown = f"MemTotal {gib(total)} GiB"
    if total < known.GB10_MEMORY_BYTES - known.MEMORY_SLACK_BYTES:
        about = known.RELEASES.get(version)
        why = f" ({about.says})" if about and about.says else ""
        evidence = f"{shown}: {gib(known.GB10_MEMORY_BYTES - total)} GiB less than on other GB10 hosts{why}"
        yield Finding("memory", "warning", evidence, DASHBOARD, known.MEMORY_SOURCE)
    else:
        yield Finding("memory", "ok", shown, source=known.MEMORY_SOURCE)


KERNEL_NAME = "kernel"


def check_kernel(host: Host) -> Iterator[Finding]:
    release = (host.read("/proc/sys/kernel/osrelease") or "").strip()
    found = re.match(r"\d+\.\d+", release)
    about = known.KERNELS.get(found[0]) if found else None
    if about is None:
        shown = release or "cannot read the kernel release"
        yield Finding(KERNEL_NAME, "unknown", f"{shown}: not a known kernel of DGX OS 7", source=known.WIKI)
    elif about.says and (links := _fast_links(host)):
        evidence = f"{release}: {about.says}, and {', '.join(links)} is up"
        yield Finding(KERNEL_NAME, "warning", evidence, "ib_write_bw (between two Sparks) tells", about.source)
    else:
        yield Finding(KERNEL_NAME, "ok", release, source=about.source)
    if host.there("/run/reboot-required") or host.there("/var/run/reboot-required"):
        waiting = ", ".join((host.read("/run/reboot-required.pkgs") or "").split()) or "an update"
        yield Finding("reboot", "warning", f"reboot required: {waiting}", "sudo reboot", "update-notifier")


def _fast_links(host: Host) -> list[str]:
    """Return the ConnectX ports that are up."""
    devices = host.names_in("/sys/class/infiniband")
    state = "/sys/class/infiniband/{}/ports/1/state"
    return [name for name in devices if "ACTIVE" in (host.read(state.format(name)) or "")]


UPDATES_NAME = "updates"
PROGRAM = "nvidia-spark-ota-check"
#: time limit for the program, which contacts NVIDIA's servers, in seconds
TIMEOUT_S = 20.0
SHOWN_CHARS = 160


def check_updates(host: Host) -> Iterator[Finding]:
    """Show the program's output without a verdict, because its exit codes are not documented."""
    answer = host.output(PROGRAM, timeout_s=TIMEOUT_S)
    if answer is None:
        yield Finding(UPDATES_NAME, "unknown", f"{PROGRAM} is not installed or does not answer", source=known.OTA)
        return
    lines = [line.strip() for line in (answer.out or answer.err).splitlines() if line.strip()]
    words = one_line(lines[-1], at_most=SHOWN_CHARS) if lines else "no output"
    evidence = f"{PROGRAM} (exit {answer.code}): {words}"
    yield Finding(UPDATES_NAME, "ok" if answer.ok else "unknown", evidence, "" if answer.ok else PROGRAM, known.OTA)


CLOCK_NAME = "clock"
BESIDE = "clock beside the laptop's"
SYNCHRONIZED = "/run/systemd/timesync/synchronized"


def check_clock(host: Host) -> Iterator[Finding]:
    source, fix = known.CLOCK.source, FIXES["clock"].manual_command(host.user)
    if host.there(SYNCHRONIZED):
        yield Finding(CLOCK_NAME, "ok", "set by systemd-timesyncd", source=source)
        return
    shown = host.printed("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized") or ""
    fields = dict(line.partition("=")[::2] for line in shown.splitlines())
    if fields.get("NTPSynchronized") == "yes":
        yield Finding(CLOCK_NAME, "ok", "synchronized", source=source)
    elif fields.get("NTP") == "no":
        yield Finding(CLOCK_NAME, "warning", "not synchronized: NTP is off", fix, source, "clock")
    elif fields:
        yield Finding(
            CLOCK_NAME, "warning", "NTP is on but has not synchronized yet", "timedatectl timesync-status", source
        )
    else:
        yield Finding(CLOCK_NAME, "unknown", "synchronization status unknown", "timedatectl", source)


def against(host_s: float, laptop_s: float, user: str) -> Finding:
    """Compare the clocks of the host and the laptop, in seconds since the epoch at the same moment.

    It is not decided which one is right.
    """
    off_s, source = host_s - laptop_s, known.CLOCK.source
    if abs(off_s) <= known.CLOCK_WARNING_S:
        return Finding(BESIDE, "ok", "in sync", source=source)
    verdict: Verdict = "bad" if abs(off_s) > known.CLOCK_BAD_S else "warning"
    shown = f"{abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} the laptop's: {known.CLOCK.says}"
    return Finding(BESIDE, verdict, shown, FIXES["clock"].manual_command(user), source)


SESSION_NAME = "logout"
MAIN = "/etc/systemd/logind.conf"
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
NO = ("no", "n", "false", "f", "off", "0")


def check_session(host: Host) -> Iterator[Finding]:
    if not any(host.there(folder) for folder in ("/lib/systemd/systemd", "/run/systemd/system", MAIN)):
        yield Finding(SESSION_NAME, "unknown", "systemd is not running")
        return
    lingers = host.there(f"/var/lib/systemd/linger/{host.user}")
    value, where = _remove_ipc(host)
    uid = _uid(host)
    ordinary = uid is None or uid >= known.FIRST_ORDINARY_UID
    source = known.REMOVE_IPC.source
    if lingers or not ordinary:
        system = f"{host.user} is a system user, exempt from RemoveIPC"
        why = f"linger is enabled for {host.user}" if lingers else system
        yield Finding(SESSION_NAME, "ok", f"{why}: nothing is removed at logout", source=source)
        return
    loses = "user services stop at the last logout"
    if value not in NO:
        shares = ", and the recipe's container has `ipc: host`" if host.wanted.ipc == "host" else ""
        loses = f"{known.REMOVE_IPC.says}{shares}"
    evidence, fix = f"{where}; linger is off for {host.user}: {loses}", FIXES["linger"].manual_command(host.user)
    yield Finding(SESSION_NAME, "warning", evidence, fix, "loginctl(1)" if value in NO else source, "linger")


def _remove_ipc(host: Host) -> tuple[str, str]:
    """Return the value of RemoveIPC and its source. The last file by name counts, and the default is yes."""
    drop_ins = {  # a file in /etc overrides those of the same name elsewhere
        name: f"{folder}/logind.conf.d/{name}"
        for folder in reversed(FOLDERS)
        for name in host.names_in(f"{folder}/logind.conf.d")
    }
    files = [MAIN, *(drop_ins[name] for name in sorted(drop_ins) if name.endswith(".conf"))]
    for path in reversed(files):
        value = host.assignments(path).get("RemoveIPC")
        if value:
            return value.lower(), f"RemoveIPC={value} in {path}"
    return "yes", "RemoveIPC=yes by default"


def _uid(host: Host) -> int | None:
    rows = (row for row in host.rows("/etc/passwd") if row[0] == host.user and len(row) > 2)
    return next((int(row[2]) for row in rows if row[2].isdigit()), None)


LANGUAGE_NAME = "locale"
FILES = ("/etc/locale.conf", "/etc/default/locale")
ALWAYS = ("c", "posix", "")


def check_language(host: Host) -> Iterator[Finding]:
    source = known.LOCALE.source
    wanted, where = _wanted(host)
    listed = host.printed("locale", "-a")
    if listed is None:
        yield Finding(LANGUAGE_NAME, "unknown", "`locale -a` does not list the locales", source=source)
        return
    there = {_plain(line) for line in listed.split()}
    if _plain(wanted) in ALWAYS or _plain(wanted) in there:
        yield Finding(LANGUAGE_NAME, "ok", f"{wanted or 'C'} ({where})", source=source)
        return
    if where in FILES:
        evidence = f"{where} is {wanted}, which is not installed: {known.LOCALE.says}"
        yield Finding(LANGUAGE_NAME, "warning", evidence, FIXES["locale"].manual_command(host.user), source, "locale")
    else:
        evidence = f"ssh sends {where}={wanted}, which is not installed on the host: {known.LOCALE.says}"
        yield Finding(LANGUAGE_NAME, "warning", evidence, f"sudo locale-gen {wanted}", source)


def _wanted(host: Host) -> tuple[str, str]:
    """Return the locale of a login and its source. The locale that ssh sends overrides the host's files."""
    if not host.context.machine.root:
        for name in ("LC_CTYPE", "LANG"):
            if os.environ.get(name) and os.environ[name] != _configured(host)[0]:
                return os.environ[name], name
    return _configured(host)


def _configured(host: Host) -> tuple[str, str]:
    for path in FILES:
        found = host.assignments(path)
        if found.get("LC_ALL") or found.get("LANG"):
            return found.get("LC_ALL") or found["LANG"], path
    return "", "no locale is set"


def _plain(name: str) -> str:
    """Normalize a locale's name: en_US.UTF-8 and en_US.utf8 are the same."""
    return name.lower().replace("-", "").strip()
