"""The locale of logins: that it exists. Its language does not matter here: everything is run with LC_ALL=C."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.fixes import FIXES
from sparkwright.doctor.host import Host

NAME = "locale"
FILES = ("/etc/locale.conf", "/etc/default/locale")
ALWAYS = ("c", "posix", "")


def check(host: Host) -> Iterator[Finding]:
    source = known.LOCALE.source
    wanted, where = _wanted(host)
    listed = host.printed("locale", "-a")
    if listed is None:
        yield Finding(NAME, "unknown", "`locale -a` does not list the locales", source=source)
        return
    there = {_plain(line) for line in listed.split()}
    if _plain(wanted) in ALWAYS or _plain(wanted) in there:
        yield Finding(NAME, "ok", f"{wanted or 'C'} ({where})", source=source)
        return
    if where in FILES:
        evidence = f"{where} is {wanted}, which is not installed: {known.LOCALE.says}"
        yield Finding(NAME, "warning", evidence, FIXES["locale"].manual_command(host.user), source, "locale")
    else:
        evidence = f"ssh sends {where}={wanted}, which is not installed on the host: {known.LOCALE.says}"
        yield Finding(NAME, "warning", evidence, f"sudo locale-gen {wanted}", source)


def _wanted(host: Host) -> tuple[str, str]:
    """Return (the locale of a login, its source): the one that ssh sends overrides the host's own files."""
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
