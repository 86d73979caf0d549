"""The files a new user starts from: hosts/, recipes/, playbooks/, templates/ and tasks.py."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path

from sparkwright.errors import Failed, Refused

FOLDERS = ("hosts", "recipes", "playbooks", "templates")
#: what `patch` compares; hosts are the user's own from the first day
COMPARED = ("recipes", "playbooks", "templates")
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
    files = _shipped(top, FOLDERS)
    targets = [folder / path.relative_to(top) for path in files]
    there = [path for path in targets if path.exists()]
    if there:
        raise Refused(f"{there[0]} already exists.", fix="`init --diff` shows what this version ships differently.")
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


def patch(folder: Path) -> str:
    """A patch, as `git apply` takes it, from the files of a project to those this version ships; empty when they are the same.

    Files that the project alone has are not in it. Raises Refused where there is no project.
    """
    if not (folder / "playbooks").is_dir():
        raise Refused(f"no playbooks/ in {folder.resolve()}.", fix="Name the project's folder: `init FOLDER --diff`.")
    top = source()
    return "".join(_patch_of(path.relative_to(top), folder, path) for path in _shipped(top, COMPARED))


def _patch_of(name: Path, folder: Path, shipped: Path) -> str:
    there = folder / name
    before = there.read_text(errors="replace").splitlines(keepends=True) if there.exists() else []
    after, own = shipped.read_text().splitlines(keepends=True), f"a/{name}" if there.exists() else "/dev/null"
    lines = difflib.unified_diff(before, after, own, f"b/{name}")
    ended = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    header = [f"diff --git a/{name} b/{name}\n", *([] if there.exists() else ["new file mode 100644\n"])]
    return "".join([*header, *ended]) if ended else ""


def _shipped(top: Path, folders: Sequence[str]) -> list[Path]:
    """The files of these folders, and tasks.py."""
    files = (path for name in folders for path in sorted((top / name).rglob("*")) if path.is_file())
    return [*(path for path in files if path.name[0] != "."), top / "tasks.py"]
