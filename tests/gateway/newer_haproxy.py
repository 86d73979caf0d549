"""A newer HAProxy from the next Debian release: `python -m tests.gateway.newer_haproxy` installs it (230 MB; root, debootstrap).

It is kept in .engine/haproxy. Some tests run with both versions; those with the newer one are skipped if it is missing.
"""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent.resolve() / ".engine/haproxy"
RELEASE = "trixie"
PROGRAM = FOLDER / "haproxy"
#: starts the program with the loader and libraries of its release, under this name, because a reload starts it again
WRAPPER = """#!/bin/sh
exec ROOT/lib64/ld-linux-x86-64.so.2 --argv0 "$0" --library-path ROOT/lib/x86_64-linux-gnu:ROOT/usr/lib/x86_64-linux-gnu \\
  ROOT/usr/sbin/haproxy "$@"
"""


def ensure_program() -> Path:
    """Return the folder of the program `haproxy`, installed if missing. Raises CalledProcessError."""
    if not PROGRAM.exists():
        root, sites = FOLDER / RELEASE, ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
        mirror = subprocess.run(sites, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        shutil.rmtree(root, ignore_errors=True)  # left by an interrupted run
        subprocess.run(["debootstrap", "--variant=minbase", "--include=haproxy", RELEASE, root, mirror], check=True)
        PROGRAM.write_text(WRAPPER.replace("ROOT", str(root)))
        PROGRAM.chmod(0o755)
    return FOLDER


if __name__ == "__main__":
    sys.exit(subprocess.run([ensure_program() / "haproxy", "-v"], check=False).returncode)
