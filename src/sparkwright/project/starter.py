"""The files a new user starts from: hosts/, recipes/ and tasks.py, and those of a pair of simulated Sparks."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sparkwright.errors import Failed, Refused
from sparkwright.project import shipped_files
from sparkwright.project.folder import Project
from sparkwright.project.inventory.patterns import GROUPS_FILE
from sparkwright.project.shipped_files import source

FOLDERS = ("hosts", "recipes")
#: folders that `patch` compares; hosts are the user's own from the first day
COMPARED = ("recipes", *shipped_files.FOLDERS)
#: output of commands in a project's folder that is not committed; spark.lock is
GITIGNORE = """\
.sandbox/
.sparkwright/
incidents/
results/
report.html
"""


def files() -> list[Path]:
    """Return every file that `lay` copies."""
    return _shipped(source(), FOLDERS)


def refuse_project(folder: Path) -> None:
    """Raise Refused if one of the files that `lay` writes exists already."""
    _refuse_there([folder / name for name in planned({})])


def _refuse_there(targets: Iterable[Path]) -> None:
    if there := [path for path in targets if path.exists()]:
        raise Refused(f"{there[0]} already exists.", fix="`init --diff` shows what this version ships differently.")


def lay(folder: Path, texts: Mapping[str, str] | None = None, without: Collection[str] = ()) -> list[Path]:
    """Copy the starter files, write a .gitignore if there is none, and return what was written.

    A failure halfway leaves nothing behind.

    Args:
        texts: contents by path in the project, instead of a starter file or besides them.
        without: paths to leave out.

    Raises Refused before anything is written if one of the files exists already.
    """
    contents = planned(texts or {}, without)
    targets = [folder / name for name in contents]
    _refuse_there(targets)
    ignore = {} if (folder / ".gitignore").exists() else {folder / ".gitignore": GITIGNORE.encode()}
    written = {**dict(zip(targets, contents.values(), strict=True)), **ignore}
    made = [path for path in _folders(written) if not path.exists()]
    try:
        for target, content in written.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        shipped_files.refresh(folder)
    except BaseException as error:
        _take_back(written, made)  # so that the command can be repeated
        if isinstance(error, OSError):
            raise Failed(f"{target}: {error.strerror}.", fix="Nothing was created.") from None
        raise
    return list(written)


def planned(texts: Mapping[str, str], without: Collection[str] = ()) -> dict[str, bytes]:
    """Return the files that `lay` writes, by path in the project. Its arguments are those of `lay`."""
    top = source()
    shipped = {str(path.relative_to(top)): path for path in files()}
    found = {name: path.read_text() for name, path in shipped.items() if name not in without}
    return {name: shipped_files.in_project(text).encode() for name, text in {**found, **texts}.items()}


def _folders(written: Iterable[Path]) -> list[Path]:
    """Return every folder above one of these, the deepest first."""
    found = {folder for path in written for folder in path.parents}
    return sorted(found, key=lambda value: len(value.parts), reverse=True)


def _take_back(written: Iterable[Path], made: Iterable[Path]) -> None:
    for path in written:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def patch(folder: Path) -> str:
    """Return a patch, as `git apply` takes it, from a project's files to those of this version; empty if they are the same.

    Files that only the project has are not in it, and playbooks, templates and schemas that only the package has. Raises Refused
    if there is no project.
    """
    if not Project.is_one(folder):
        message = f"no hosts/ and recipes/ in {folder.resolve()}."
        raise Refused(message, fix="Name the project's folder: `init FOLDER --diff`.")
    shipped = [(path.relative_to(source()), path) for path in _shipped(source(), COMPARED)]
    compared = [
        name for name in shipped if name[0].parts[0] not in shipped_files.FOLDERS or (folder / name[0]).exists()
    ]
    return "".join(_patch_of(name, folder, path) for name, path in compared)


def _patch_of(name: Path, folder: Path, shipped: Path) -> str:
    there = folder / name
    before = there.read_text(errors="replace").splitlines(keepends=True) if there.exists() else []
    after = shipped_files.in_project(shipped.read_text()).splitlines(keepends=True)
    own = f"a/{name}" if there.exists() else "/dev/null"
    lines = difflib.unified_diff(before, after, own, f"b/{name}")
    ended = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    header = [f"diff --git a/{name} b/{name}\n", *([] if there.exists() else ["new file mode 100644\n"])]
    return "".join([*header, *ended]) if ended else ""


def _shipped(top: Path, folders: Sequence[str]) -> list[Path]:
    """Return the files of these folders, and tasks.py."""
    files = (path for name in folders for path in sorted((top / name).rglob("*")) if path.is_file())
    return [*(path for path in files if path.name[0] != "."), top / "tasks.py"]


GROUP, RECIPE, HEAD, WORKER = "sandbox-pair", "sandbox-pair", "sandbox1", "sandbox2"

HOST_TEXT = """\
# A simulated Spark of a pair, with a link to the other. `sandbox.fault --host {name}` breaks it on purpose.

connection: sandbox
user: spark
fabric: {{interfaces: [enp1s0f1np1, enP2p1s0f1np1], address: 127.0.0.{place}}}  # the link is this machine's loopback
"""

GROUP_TEXT = f"""
{GROUP}:                  # both serve one model together, sandbox1 answers
  hosts: [{HEAD}, {WORKER}]
  cluster: {{recipe: {RECIPE}, head: {HEAD}}}
"""

RECIPE_TEXT = """\
# A model split between the two simulated Sparks: half of each layer on either of them.

description: Qwen3.5-35B-A3B FP8 over two simulated Sparks
image: vllm/vllm-openai:v0.32.0

model:
  id: Qwen/Qwen3.5-35B-A3B-FP8
  dir: ~/models/qwen35-35b-hf
  mount: /models/qwen35

parallel: {tensor: 2}          # sets network, devices and addresses: docs/clusters.md

container:
  name: qwen35-pair
  gpus: all

vllm:
  host: 127.0.0.1
  port: 18472                  # of this machine
  served-model-name: qwen3.5-35b
  max-model-len: 131072
  gpu-memory-utilization: 0.85
  enable-prefix-caching: true
  kv-cache-dtype: fp8
  max-num-seqs: 8
  max-num-batched-tokens: 4096

expect:
  tok_per_s: 47                # the sandbox's rank gives what one host gives
  ready_s: 120
"""


def lay_pair(root: Path) -> list[Path]:
    """Write them into a project. Returns what was written. Raises Refused before anything when one of them is there already."""
    groups = root / "hosts" / GROUPS_FILE
    texts = {
        root / f"hosts/{HEAD}.yml": shipped_files.line("host") + HOST_TEXT.format(name=HEAD, place=1),
        root / f"hosts/{WORKER}.yml": shipped_files.line("host") + HOST_TEXT.format(name=WORKER, place=2),
        root / f"recipes/{RECIPE}.yml": shipped_files.line("recipe") + RECIPE_TEXT,
    }
    if there := [path for path in texts if path.exists()]:
        raise Refused(f"{there[0]} already exists.", fix="Remove it first.")
    before = groups.read_text() if groups.exists() else shipped_files.line("groups")
    if any(line.startswith(f"{GROUP}:") for line in before.splitlines()):
        raise Refused(f"{groups} already has a group {GROUP}.", fix="Remove it first.")
    texts[groups] = before + ("" if before.endswith("\n") or not before else "\n") + GROUP_TEXT
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise Failed(f"{path}: {error.strerror}.") from None
    return list(texts)
