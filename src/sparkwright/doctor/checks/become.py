"""The runtime that `become` runs as root: the user's, or root's own."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.errors import Refused
from sparkwright.host import root_runtime

NAME = "become"
SOURCE = "docs/security.md"
FIX = "sparkwright runtime.install --host {}"


def check(host: Host) -> Iterator[Finding]:
    """Check for a runtime folder of root's own. Without one, root's tasks are as trusted as the account, which may be
    intended."""
    if host.memory() is None:
        yield Finding(NAME, "unknown", "the files of this host cannot be read")
        return
    if not root_runtime.FOLDER.is_dir():
        yield Finding(NAME, "ok", "root runs from the account's folder, which that account can change", source=SOURCE)
        return
    try:
        place = root_runtime.library()
    except Refused as error:
        yield Finding(NAME, "bad", error.message, FIX.format(host.wanted.name or "HOST"))
    else:
        yield Finding(NAME, "ok", f"root runs from {place.parent}, which nobody else can change")
