"""The files a new user starts from: hosts/, recipes/, playbooks/, templates/ and tasks.py."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sparkwright.errors import Failed, Refused

FOLDERS = ("hosts", "recipes", "playbooks", "templates")
#: what commands leave in a project's folder and nobody commits; spark.lock is committed
GITIGNORE = """\
.sandbox/
.sparkwright/
incidents/
results/
report.html
"""


def source() -> Path:
    """Where they stand: inside the installed package, or at the top of the checkout it runs from."""
    package = Path(__file__).parents[1]
    installed = package / "starter"
    return installed if installed.is_dir() else package.parent.parent


def lay(folder: Path) -> list[Path]:
    """Copy them, and write a .gitignore where there is none. Returns what was written.

    Raises Refused before anything when one of them is there already.
    """
    top = source()
    files = [
        path for name in FOLDERS for path in sorted((top / name).rglob("*")) if path.is_file() and path.name[0] != "."
    ]
    files.append(top / "tasks.py")
    targets = [folder / path.relative_to(top) for path in files]
    there = [path for path in targets if path.exists()]
    if there:
        raise Refused(f"{there[0]} already exists.", fix="`init` needs an empty directory.")
    texts = {target: path.read_bytes() for path, target in zip(files, targets, strict=True)}
    ignore = folder / ".gitignore"
    if not ignore.exists():
        texts[ignore] = GITIGNORE.encode()
    for target, text in texts.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
        except OSError as error:
            for one in texts:  # so that it can be given again
                with contextlib.suppress(OSError):
                    one.unlink(missing_ok=True)
            raise Failed(f"{target}: {error.strerror}.", fix="Nothing was created.") from None
    return list(texts)
