"""Checks for the operating system: release, kernel, updates, clock, and logins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sparkwright.doctor import known_facts
from sparkwright.doctor.checks.registration import register_check
from sparkwright.doctor.host import FIXES, GB10, Finding, Host, Verdict, version_tuple
from sparkwright.units import format_gib
from sparkwright.visible import one_line

#: clock offset between host and laptop above which a warning is reported, in seconds
CLOCK_WARNING_S = 30.0
#: clock offset above which the verdict is bad, in seconds
CLOCK_BAD_S = 300.0

RELEASE_CHECK = "DGX OS"
DASHBOARD_FIX = "Update it in the DGX Dashboard (http://localhost:11000 on the host)."


@register_check(RELEASE_CHECK)
def check_release(host: Host) -> Iterator[Finding]:
    release = host.assignments("/etc/dgx-release")
    gpu = host.gpu()
    if not release:
        system = host.assignments("/etc/os-release").get("PRETTY_NAME", "an unknown system")
        if gpu and GB10 in gpu[0]:
            evidence = f"{system} without /etc/dgx-release: not the factory OS image"
            yield Finding(RELEASE_CHECK, "warning", evidence, source=known_facts.NVCHECKUP)
        else:
            yield Finding(RELEASE_CHECK, "unknown", f"{system}, and no GB10 was found: is this a DGX Spark?")
        return
    build_version, update_version = release.get("DGX_SWBUILD_VERSION", ""), release.get("DGX_OTA_VERSION", "")
    yield _release_finding(
        update_version or build_version, f"DGX OS {build_version or '?'}, OTA {update_version or 'none'}"
    )
    if gpu and GB10 in gpu[0]:
        yield from _check_memory_size(host, update_version or build_version)


def _release_finding(version: str, evidence: str) -> Finding:
    if not version:
        return Finding(RELEASE_CHECK, "unknown", "no version in /etc/dgx-release", "cat /etc/dgx-release")
    newest_release = list(known_facts.RELEASES)[-1]
    source = known_facts.RELEASES.get(version, known_facts.RELEASES[newest_release]).source
    if version_tuple(version)[0] < known_facts.RELEASE_MAJOR:
        evidence = f"{evidence}: older than DGX OS {known_facts.RELEASE_MAJOR}"
        return Finding(RELEASE_CHECK, "bad", evidence, DASHBOARD_FIX, source)
    if version_tuple(version) > version_tuple(newest_release):
        return Finding(
            RELEASE_CHECK, "unknown", f"{evidence}: newer than {newest_release}, the newest known to sparkwright"
        )
    return Finding(RELEASE_CHECK, "ok", evidence, source=source)


def _check_memory_size(host: Host, version: str) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None:
        yield Finding("memory", "unknown", "cannot read /proc/meminfo")
        return
    total_bytes = memory["MemTotal"]
    summary = f"MemTotal {format_gib(total_bytes)} GiB"
    missing_bytes = known_facts.GB10_MEMORY_BYTES - total_bytes
    if missing_bytes > known_facts.MEMORY_SLACK_BYTES:
        fact = known_facts.RELEASES.get(version)
        reason = f" ({fact.text})" if fact and fact.text else ""
        evidence = f"{summary}: {format_gib(missing_bytes)} GiB less than on other GB10 hosts{reason}"
        yield Finding("memory", "warning", evidence, DASHBOARD_FIX, known_facts.MEMORY_SOURCE)
    else:
        yield Finding("memory", "ok", summary, source=known_facts.MEMORY_SOURCE)


KERNEL_CHECK = "kernel"


@register_check(KERNEL_CHECK)
def check_kernel(host: Host) -> Iterator[Finding]:
    release = (host.read("/proc/sys/kernel/osrelease") or "").strip()
    match = re.match(r"\d+\.\d+", release)
    fact = known_facts.KERNELS.get(match[0]) if match else None
    if fact is None:
        summary = release or "cannot read the kernel release"
        yield Finding(KERNEL_CHECK, "unknown", f"{summary}: not a known DGX OS 7 kernel", source=known_facts.WIKI)
    elif fact.text and (active_ports := _active_connectx_ports(host)):
        evidence = f"{release}: {fact.text}, and {', '.join(active_ports)} is up"
        yield Finding(KERNEL_CHECK, "warning", evidence, "ib_write_bw (between two Sparks)", fact.source)
    else:
        yield Finding(KERNEL_CHECK, "ok", release, source=fact.source)
    if host.path_exists("/run/reboot-required") or host.path_exists("/var/run/reboot-required"):
        packages = ", ".join((host.read("/run/reboot-required.pkgs") or "").split()) or "an update"
        yield Finding("reboot", "warning", f"reboot required: {packages}", "sudo reboot", "update-notifier")


def _active_connectx_ports(host: Host) -> list[str]:
    """Return the ConnectX ports that are up."""
    devices = host.list_folder("/sys/class/infiniband")
    state_path = "/sys/class/infiniband/{}/ports/1/state"
    return [name for name in devices if "ACTIVE" in (host.read(state_path.format(name)) or "")]


UPDATES_CHECK = "updates"
OTA_PROGRAM = "nvidia-spark-ota-check"
#: time limit for the program, which contacts NVIDIA's servers, in seconds
OTA_TIMEOUT_S = 20.0
MAX_OUTPUT_CHARS = 160


@register_check(UPDATES_CHECK)
def check_updates(host: Host) -> Iterator[Finding]:
    """Report the output of NVIDIA's program without judging it, because its exit codes are undocumented."""
    result = host.run_program(OTA_PROGRAM, timeout_s=OTA_TIMEOUT_S)
    source = known_facts.OTA_SOURCE
    if result is None:
        yield Finding(
            UPDATES_CHECK, "unknown", f"{OTA_PROGRAM} is not installed or did not finish in time", source=source
        )
        return
    lines = [line.strip() for line in (result.out or result.err).splitlines() if line.strip()]
    last_line = one_line(lines[-1], max_chars=MAX_OUTPUT_CHARS) if lines else "no output"
    evidence = f"{OTA_PROGRAM} (exit {result.code}): {last_line}"
    if result.ok:
        yield Finding(UPDATES_CHECK, "ok", evidence, source=source)
    else:
        yield Finding(UPDATES_CHECK, "unknown", evidence, OTA_PROGRAM, source)


CLOCK_CHECK = "clock"
CLOCK_OFFSET_CHECK = "clock offset"
SYNCHRONIZED_PATH = "/run/systemd/timesync/synchronized"


@register_check(CLOCK_CHECK)
def check_clock(host: Host) -> Iterator[Finding]:
    source, fix = known_facts.CLOCK.source, FIXES["clock"].manual_command(host.user)
    if host.path_exists(SYNCHRONIZED_PATH):
        yield Finding(CLOCK_CHECK, "ok", "set by systemd-timesyncd", source=source)
        return
    output = host.read_output("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized") or ""
    fields = dict(line.partition("=")[::2] for line in output.splitlines())
    if fields.get("NTPSynchronized") == "yes":
        yield Finding(CLOCK_CHECK, "ok", "synchronized", source=source)
    elif fields.get("NTP") == "no":
        yield Finding(CLOCK_CHECK, "warning", "not synchronized: NTP is off", fix, source, "clock")
    elif fields:
        evidence = "NTP is on but has not synchronized yet"
        yield Finding(CLOCK_CHECK, "warning", evidence, "timedatectl timesync-status", source)
    else:
        yield Finding(CLOCK_CHECK, "unknown", "synchronization status unknown", "timedatectl", source)


def compare_clocks(host_time_s: float, laptop_time_s: float, user: str) -> Finding:
    """Compare the clocks of the host and the laptop, either of which may be wrong.

    Args:
        host_time_s: the host's time, in seconds since the epoch.
        laptop_time_s: the laptop's time at the same moment.
        user: the login user, for the fix.
    """
    offset_s, source = host_time_s - laptop_time_s, known_facts.CLOCK.source
    if abs(offset_s) <= CLOCK_WARNING_S:
        return Finding(CLOCK_OFFSET_CHECK, "ok", "in sync", source=source)
    verdict: Verdict = "bad" if abs(offset_s) > CLOCK_BAD_S else "warning"
    evidence = (
        f"{abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the laptop's: {known_facts.CLOCK.text}"
    )
    return Finding(CLOCK_OFFSET_CHECK, verdict, evidence, FIXES["clock"].manual_command(user), source)


LOGOUT_CHECK = "logout"
LOGIND_CONFIG_PATH = "/etc/systemd/logind.conf"
SYSTEMD_FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
FALSE_VALUES = ("no", "n", "false", "f", "off", "0")


@register_check(LOGOUT_CHECK)
def check_logout(host: Host) -> Iterator[Finding]:
    if not any(
        host.path_exists(folder) for folder in ("/lib/systemd/systemd", "/run/systemd/system", LOGIND_CONFIG_PATH)
    ):
        yield Finding(LOGOUT_CHECK, "unknown", "systemd is not running")
        return
    lingers = host.path_exists(f"/var/lib/systemd/linger/{host.user}")
    remove_ipc, origin = _read_remove_ipc(host)
    uid = _read_uid(host)
    source = known_facts.REMOVE_IPC.source
    if lingers:
        evidence = f"linger is enabled for {host.user}: nothing is removed at logout"
        yield Finding(LOGOUT_CHECK, "ok", evidence, source=source)
        return
    if uid is not None and uid < known_facts.FIRST_ORDINARY_UID:
        evidence = f"{host.user} is a system user, exempt from RemoveIPC: nothing is removed at logout"
        yield Finding(LOGOUT_CHECK, "ok", evidence, source=source)
        return
    if remove_ipc in FALSE_VALUES:
        consequence, source = "user services stop at the last logout", "loginctl(1)"
    else:
        ipc_clause = ", and the recipe's container has `ipc: host`" if host.server.ipc == "host" else ""
        consequence = f"{known_facts.REMOVE_IPC.text}{ipc_clause}"
    evidence = f"{origin}; linger is off for {host.user}: {consequence}"
    yield Finding(LOGOUT_CHECK, "warning", evidence, FIXES["linger"].manual_command(host.user), source, "linger")


def _read_remove_ipc(host: Host) -> tuple[str, str]:
    """Return the value of RemoveIPC and where it is set. The last file by name takes precedence; the default is yes."""
    drop_ins = {  # a file in /etc overrides files of the same name elsewhere
        name: f"{folder}/logind.conf.d/{name}"
        for folder in reversed(SYSTEMD_FOLDERS)
        for name in host.list_folder(f"{folder}/logind.conf.d")
    }
    files = [LOGIND_CONFIG_PATH, *(drop_ins[name] for name in sorted(drop_ins) if name.endswith(".conf"))]
    for path in reversed(files):
        value = host.assignments(path).get("RemoveIPC")
        if value:
            return value.lower(), f"RemoveIPC={value} in {path}"
    return "yes", "RemoveIPC=yes by default"


def _read_uid(host: Host) -> int | None:
    rows = (row for row in host.rows("/etc/passwd") if row[0] == host.user and len(row) > 2)
    return next((int(row[2]) for row in rows if row[2].isdigit()), None)


LOCALE_CHECK = "locale"
LOCALE_FILES = ("/etc/locale.conf", "/etc/default/locale")
BUILT_IN_LOCALES = ("c", "posix", "")


@register_check(LOCALE_CHECK)
def check_locale(host: Host) -> Iterator[Finding]:
    source = known_facts.LOCALE.source
    locale, origin = _login_locale(host)
    output = host.read_output("locale", "-a")
    if output is None:
        yield Finding(
            LOCALE_CHECK, "unknown", "could not list the installed locales (`locale -a` failed)", source=source
        )
        return
    installed_locales = {_normalize_locale(line) for line in output.split()}
    if _normalize_locale(locale) in BUILT_IN_LOCALES or _normalize_locale(locale) in installed_locales:
        yield Finding(LOCALE_CHECK, "ok", f"{locale or 'C'} ({origin})", source=source)
        return
    if origin in LOCALE_FILES:
        evidence = f"{origin} sets {locale}, which is not installed: {known_facts.LOCALE.text}"
        yield Finding(LOCALE_CHECK, "warning", evidence, FIXES["locale"].manual_command(host.user), source, "locale")
    else:
        evidence = f"ssh sends {origin}={locale}, which is not installed on the host: {known_facts.LOCALE.text}"
        yield Finding(LOCALE_CHECK, "warning", evidence, f"sudo locale-gen {locale}", source)


def _login_locale(host: Host) -> tuple[str, str]:
    """Return the locale of a login session and its source. A locale sent by ssh overrides the host's files."""
    if not host.context.machine.root:
        for name in ("LC_CTYPE", "LANG"):
            if os.environ.get(name) and os.environ[name] != _configured_locale(host)[0]:
                return os.environ[name], name
    return _configured_locale(host)


def _configured_locale(host: Host) -> tuple[str, str]:
    for path in LOCALE_FILES:
        settings = host.assignments(path)
        if settings.get("LC_ALL") or settings.get("LANG"):
            return settings.get("LC_ALL") or settings["LANG"], path
    return "", "no locale is set"


def _normalize_locale(name: str) -> str:
    """Normalize a locale's name, because en_US.UTF-8 and en_US.utf8 are the same."""
    return name.lower().replace("-", "").strip()
