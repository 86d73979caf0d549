"""Validation of the paths at which a recipe may put a file in a container."""

from __future__ import annotations

import re

from sparkwright.visible import one_line

#: in the state folder of a host: the files of recipes, each named by the SHA-256 of its content
FOLDER = "recipe_files"
#: used by the kernel, Docker, the loader and the login: a file there changes more than a server's settings
SENSITIVE = (
    *(
        "/dev",
        "/proc",
        "/sys",
        "/boot",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib",
        "/usr/lib64",
    ),
    *("/run", "/var/run", "/root/.ssh", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/sudoers"),
    *("/etc/sudoers.d", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/etc/pam.d"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
)
_PATH = re.compile(r"(?:/[A-Za-z0-9._@+~-]{1,200}){1,20}")


def why_not_a_place(path: str) -> str:
    """Return why no file can be put there, as "must ..."; empty if one can."""
    if not _PATH.fullmatch(path):
        return "must be a path in the container, as /etc/engine/options.yml, of letters, digits and . _ - @ + ~"
    if {"..", "."} & {*path.split("/")}:
        return "must not go up (..)"
    over = next((item for item in SENSITIVE if path == item or path.startswith(f"{item}/")), "")
    return f"must not be in {one_line(over)}, which is the system's" if over else ""
