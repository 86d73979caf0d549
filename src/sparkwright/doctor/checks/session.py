"""The effects of a logout on shared memory (RemoveIPC) and the user's services, unless lingering is enabled."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.fixes import FIXES
from sparkwright.doctor.host import Host

NAME = "logout"
MAIN = "/etc/systemd/logind.conf"
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
NO = ("no", "n", "false", "f", "off", "0")


def check(host: Host) -> Iterator[Finding]:
    if not any(host.there(folder) for folder in ("/lib/systemd/systemd", "/run/systemd/system", MAIN)):
        yield Finding(NAME, "unknown", "systemd is not running")
        return
    lingers = host.there(f"/var/lib/systemd/linger/{host.user}")
    value, where = _remove_ipc(host)
    uid = _uid(host)
    ordinary = uid is None or uid >= known.FIRST_ORDINARY_UID
    source = known.REMOVE_IPC.source
    if lingers or not ordinary:
        system = f"{host.user} is a system user, exempt from RemoveIPC"
        why = f"linger is enabled for {host.user}" if lingers else system
        yield Finding(NAME, "ok", f"{why}: nothing is removed at logout", source=source)
        return
    loses = "user services stop at the last logout"
    if value not in NO:
        shares = ", and the recipe's container has `ipc: host`" if host.wanted.ipc == "host" else ""
        loses = f"{known.REMOVE_IPC.says}{shares}"
    evidence, fix = f"{where}; linger is off for {host.user}: {loses}", FIXES["linger"].manual_command(host.user)
    yield Finding(NAME, "warning", evidence, fix, "loginctl(1)" if value in NO else source, "linger")


def _remove_ipc(host: Host) -> tuple[str, str]:
    """Return (the value of RemoveIPC, its source); the last file by name counts, and the default is yes."""
    drop_ins = {  # the same name in /etc overrides the others
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
