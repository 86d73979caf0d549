"""The files of a new project (hosts/, recipes/ and tasks.py), and of a pair of simulated Sparks."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sparkwright.errors import Failed, Refused
from sparkwright.project import shipped_files
from sparkwright.project.folder import Project
from sparkwright.project.inventory.patterns import GROUPS_FILE
from sparkwright.project.shipped_files import shipped_folder

STARTER_FOLDERS = ("hosts", "recipes")
#: folders that `build_patch` compares; hosts/ is not, because users always replace it
COMPARED_FOLDERS = ("recipes", *shipped_files.SHIPPED_FOLDERS)
#: output of commands that should not be committed
GITIGNORE = """\
.sandbox/
.sparkwright/
incidents/
results/
report.html
"""
PAIR_GROUP, PAIR_RECIPE, PAIR_HEAD, PAIR_WORKER = "sandbox-pair", "sandbox-pair", "sandbox1", "sandbox2"
PAIR_HOST_TEXT = """\
# A simulated Spark, linked to the other one of its pair. `sandbox.fault --host {name}` injects faults.

connection: sandbox
user: spark
fabric: {{interfaces: [enp1s0f1np1, enP2p1s0f1np1], address: 127.0.0.{place}}}  # the simulated link uses this machine's loopback
"""
PAIR_GROUP_TEXT = f"""
{PAIR_GROUP}:                  # both serve one model together; sandbox1 answers requests
  hosts: [{PAIR_HEAD}, {PAIR_WORKER}]
  cluster: {{recipe: {PAIR_RECIPE}, head: {PAIR_HEAD}}}
"""
PAIR_RECIPE_TEXT = """\
# A model split over two simulated Sparks: each has half of every layer.

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
  port: 18472                  # port on this machine
  served-model-name: qwen3.5-35b
  max-model-len: 131072
  gpu-memory-utilization: 0.85
  enable-prefix-caching: true
  kv-cache-dtype: fp8
  max-num-seqs: 8
  max-num-batched-tokens: 4096

expect:
  tok_per_s: 47                # the simulated pair is as fast as one host
  ready_s: 120
"""


def list_files() -> list[Path]:
    """Return the shipped files that `write_starter` copies."""
    return _shipped_paths(shipped_folder(), STARTER_FOLDERS)


def refuse_existing_project(folder: Path) -> None:
    """Raise Refused if a file that `write_starter` writes already exists."""
    _refuse_existing([folder / name for name in plan_files({})])


def _refuse_existing(targets: Iterable[Path]) -> None:
    if existing_paths := [path for path in targets if path.exists()]:
        raise Refused(
            f"{existing_paths[0]} already exists.", fix="`init --diff` shows what this version ships differently."
        )


def write_starter(folder: Path, texts: Mapping[str, str] | None = None, excluded: Collection[str] = ()) -> list[Path]:
    """Copy the starter files, write a .gitignore unless it exists, and return the paths of the written files.

    Raises Refused before the first write if one of the files exists. If a write fails, all new files are removed.

    Args:
        texts: files to add or to replace, by path in the project.
        excluded: paths of starter files to leave out.
    """
    contents = plan_files(texts or {}, excluded)
    targets = [folder / name for name in contents]
    _refuse_existing(targets)
    gitignore_content = {} if (folder / ".gitignore").exists() else {folder / ".gitignore": GITIGNORE.encode()}
    contents_by_path = {**dict(zip(targets, contents.values(), strict=True)), **gitignore_content}
    new_folders = [path for path in _parent_folders(contents_by_path) if not path.exists()]
    try:
        for target, content in contents_by_path.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        shipped_files.refresh_schemas(folder)
    except BaseException as error:
        _undo_writes(contents_by_path, new_folders)  # so that the command can be repeated
        if isinstance(error, OSError):
            raise Failed(f"{target}: {error.strerror}.", fix="Nothing was created.") from None
        raise
    return list(contents_by_path)


def plan_files(texts: Mapping[str, str], excluded: Collection[str] = ()) -> dict[str, bytes]:
    """Return what `write_starter` writes with these arguments: contents by path in the project."""
    top = shipped_folder()
    shipped_paths = {str(path.relative_to(top)): path for path in list_files()}
    starter_texts = {name: path.read_text() for name, path in shipped_paths.items() if name not in excluded}
    return {name: shipped_files.to_project_text(text).encode() for name, text in {**starter_texts, **texts}.items()}


def _parent_folders(paths: Iterable[Path]) -> list[Path]:
    """Return all parents of these paths, the deepest first."""
    folders = {folder for path in paths for folder in path.parents}
    return sorted(folders, key=lambda folder: len(folder.parts), reverse=True)


def _undo_writes(files: Iterable[Path], folders: Iterable[Path]) -> None:
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def build_patch(folder: Path) -> str:
    """Return a patch for `git apply` that updates a project's files to this version; empty if they are the same.

    It excludes files that only the project has, ejected files, which `playbook.update` merges, and playbooks, templates and
    schemas that only the package has. Raises Refused if the folder is not a project.
    """
    if not Project.is_project(folder):
        message = f"no hosts/ and recipes/ in {folder.resolve()}."
        raise Refused(message, fix="Name the project's folder: `init FOLDER --diff`.")
    shipped_paths = [
        (path.relative_to(shipped_folder()), path) for path in _shipped_paths(shipped_folder(), COMPARED_FOLDERS)
    ]
    return "".join(
        _patch_file(name, folder, path)
        for name, path in shipped_paths
        if name.parts[0] not in shipped_files.SHIPPED_FOLDERS
        or ((folder / name).exists() and not (folder / shipped_files.ORIGINALS_FOLDER / name).exists())
    )


def _patch_file(name: Path, folder: Path, shipped_path: Path) -> str:
    path = folder / name
    before_lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
    after_lines = shipped_files.to_project_text(shipped_path.read_text()).splitlines(keepends=True)
    before_name = f"a/{name}" if path.exists() else "/dev/null"
    lines = difflib.unified_diff(before_lines, after_lines, before_name, f"b/{name}")
    terminated_lines = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    header = [f"diff --git a/{name} b/{name}\n", *([] if path.exists() else ["new file mode 100644\n"])]
    return "".join([*header, *terminated_lines]) if terminated_lines else ""


def _shipped_paths(top: Path, folders: Sequence[str]) -> list[Path]:
    """Return the files of these folders except hidden ones, and tasks.py."""
    files = (path for name in folders for path in sorted((top / name).rglob("*")) if path.is_file())
    return [*(path for path in files if path.name[0] != "."), top / "tasks.py"]


def write_pair(root: Path) -> list[Path]:
    """Write the files of a simulated pair and return their paths. Raises Refused before the first write if one exists."""
    groups_path = root / "hosts" / GROUPS_FILE
    texts = {
        root / f"hosts/{name}.yml": shipped_files.schema_line("host") + PAIR_HOST_TEXT.format(name=name, place=n)
        for n, name in enumerate((PAIR_HEAD, PAIR_WORKER), 1)
    }
    texts[root / f"recipes/{PAIR_RECIPE}.yml"] = shipped_files.schema_line("recipe") + PAIR_RECIPE_TEXT
    if existing_paths := [path for path in texts if path.exists()]:
        raise Refused(f"{existing_paths[0]} already exists.", fix="Remove it first.")
    groups_text = groups_path.read_text() if groups_path.exists() else shipped_files.schema_line("groups")
    if any(line.startswith(f"{PAIR_GROUP}:") for line in groups_text.splitlines()):
        raise Refused(f"{groups_path} already has a group {PAIR_GROUP}.", fix="Remove it first.")
    texts[groups_path] = groups_text + ("" if groups_text.endswith("\n") or not groups_text else "\n") + PAIR_GROUP_TEXT
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise Failed(f"{path}: {error.strerror}.") from None
    return list(texts)
