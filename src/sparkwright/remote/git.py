"""Safe access to an untrusted git repository of recipes: files are read by commit and path, without a work tree.

Nothing is checked out, so symlinks, filters, hooks and submodules have no effect, and only some transports are allowed. A
repository of a few kilobytes can unpack to gigabytes (one large file under many names, nested folders, deltas). There are limits
on time, CPU time, the pack's size, git's memory, the number of files, and their total size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkwright.errors import Failed, Refused, Unreachable
from sparkwright.host import output
from sparkwright.host_side import cache_folder
from sparkwright.trust import private
from sparkwright.units import MIB
from sparkwright.visible import one_line

FETCH_TIMEOUT_S, READ_TIMEOUT_S = 180.0, 30.0
#: size limit of a file that git writes; a pack of all known recipes takes 30 MB
MAX_PACK_BYTES = 512 * MIB
#: number of fetches after which the repository is recreated; a pinned commit can be fetched again
MAX_PACKS = 8
#: address space limit of each git process, which only Linux enforces
MAX_MEMORY_BYTES = 1024 * MIB
#: size limit of an object that git loads into memory; git streams larger files, which are never read here
MAX_OBJECT_BYTES = 64 * MIB
MAX_FILE_BYTES = MIB
MAX_FILES = 100_000
#: size limit of the list of a commit's files; that of the Linux kernel takes 9 MB
MAX_LIST_BYTES = 16 * MIB
#: limit on the total size of the files that a command reads; the 173 recipes of vllm-project take 2 MB
MAX_TEXT_BYTES = 32 * MIB
#: limit on the total size of the files that git prints at once
MAX_BATCH_BYTES = 4 * MIB
#: name of the folder that keeps the old repository while a new one is fetched
OLD_REPOSITORY_PATTERN = re.compile(r"[0-9a-f]{20}\.git\.[a-z0-9_]{8}")
#: files that a killed git process leaves behind; its locks would block every later fetch
UNFINISHED_FILE_PATTERNS = ("objects/pack/tmp_*", "*.lock", "refs/sparkwright/*.lock")
#: minimum age of a leftover, in seconds: files of running commands are never this old
MIN_LEFTOVER_AGE_S = 3600.0
REGULAR_MODES = ("100644", "100755")
FETCHED_REF = "refs/sparkwright/fetched"
SAFE_OPTIONS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false",
    "-c", "fetch.fsckObjects=true", "-c", "core.symlinks=false", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    # store each fetch as one pack of limited size, and index it with one thread and little memory
    "-c", "fetch.unpackLimit=1", "-c", "transfer.unpackLimit=1", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=4m",
    "-c", "core.deltaBaseCacheLimit=16m", "-c", "core.packedGitWindowSize=16m", "-c", "core.packedGitLimit=128m",
)  # fmt: skip
NARROW_FIX = "Name the folder of its recipes with `recipes:` in registries.yml, or remove the registry there."


@dataclass(frozen=True)
class File:
    """A regular file at a commit."""

    path: str
    #: id of its blob
    object_id: str
    size_bytes: int


@dataclass(frozen=True)
class Repository:
    """A git repository, cached on this laptop."""

    #: https, ssh or file URL, as the user wrote it
    url: str
    #: name for messages
    name: str

    @property
    def folder(self) -> Path:
        """The bare repository in this laptop's cache."""
        return cache_folder() / "registries" / f"{hashlib.sha256(self.url.encode()).hexdigest()[:20]}.git"

    def has_commit(self, commit: str) -> bool:
        """Return True if a commit is in the cache."""
        return self.folder.is_dir() and self._run(["cat-file", "-e", f"{commit}^{{commit}}"], READ_TIMEOUT_S)[0] == 0

    def fetch(self, ref: str) -> str:
        """Fetch a branch, a tag, HEAD or a commit without its history, and return the id of the commit.

        Raises:
            Unreachable: git could not fetch it.
            Refused: the repository is larger than allowed.
            Failed: git is not installed.
        """
        private.create_folder(self.folder.parent)
        remove_leftovers(self.folder)
        if not self._is_full():
            return self._fetch_into_cache(ref)
        backup = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.", dir=self.folder.parent)) / "old"
        self.folder.rename(backup)
        try:
            return self._fetch_into_cache(ref)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            backup.rename(self.folder)
            raise
        finally:
            shutil.rmtree(backup.parent, ignore_errors=True)

    def _is_full(self) -> bool:
        """Return True if the packs of earlier fetches, which are never garbage-collected, have reached a limit."""
        packs_folder = self.folder / "objects/pack"
        sizes = [path.stat().st_size for path in packs_folder.glob("*.pack")] if packs_folder.is_dir() else []
        return len(sizes) >= MAX_PACKS or sum(sizes) > MAX_PACK_BYTES

    def _fetch_into_cache(self, ref: str) -> str:
        """Fetch into the cache, creating it if it is missing; see `fetch`."""
        if not (self.folder / "HEAD").is_file():
            self._git(["init", "--quiet", "--bare", str(self.folder)], READ_TIMEOUT_S, in_repository=False)
        argv = ["fetch", "--quiet", "--depth", "1", "--no-tags", "--no-recurse-submodules", "--force", "--", self.url]
        self._git([*argv, f"{ref}:{FETCHED_REF}"], FETCH_TIMEOUT_S)
        return self._git(["rev-parse", f"{FETCHED_REF}^{{commit}}"], READ_TIMEOUT_S).decode().strip()

    def files(self, commit: str, folder_path: str) -> list[File]:
        """List the regular files of a folder at a commit, except those larger than MAX_FILE_BYTES.

        Raises:
            Refused: there are more than MAX_FILES files, or the list exceeds MAX_LIST_BYTES.
        """
        paths = [folder_path.strip("/") + "/"] if folder_path else []
        argv = ["ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--", *paths]
        regular_files = []
        rows = self._git(argv, READ_TIMEOUT_S, max_bytes=MAX_LIST_BYTES).split(b"\0")
        if len(rows) > MAX_FILES:
            raise Refused(
                f"the repository has more than {MAX_FILES:,} files.", where=self._error_location, fix=NARROW_FIX
            )
        for row in rows:
            metadata, _, path = row.partition(b"\t")
            parts = metadata.decode("ascii", "replace").split()
            if len(parts) == 4 and parts[0] in REGULAR_MODES and parts[3].isdigit() and int(parts[3]) <= MAX_FILE_BYTES:
                regular_files.append(File(path.decode("utf-8", "replace"), parts[2], int(parts[3])))
        return regular_files

    def read_texts(self, files: Sequence[File]) -> Iterator[tuple[File, str]]:
        """Yield files with their texts, omitting files that git does not return.

        Raises:
            Refused: their total size exceeds MAX_TEXT_BYTES; then no file is read.
        """
        if sum(file.size_bytes for file in files) > MAX_TEXT_BYTES:
            message = f"its {len(files):,} recipes exceed the limit of {MAX_TEXT_BYTES // MIB} MiB in total."
            raise Refused(message, where=self._error_location, fix=NARROW_FIX)
        for batch in _batches(files):
            object_ids = "".join(f"{file.object_id}\n" for file in batch).encode()
            remaining = memoryview(self._git(["cat-file", "--batch"], READ_TIMEOUT_S, stdin=object_ids))
            for file in batch:
                header_end = bytes(remaining[:200]).find(b"\n") + 1
                parts = bytes(remaining[:header_end]).split()
                remaining = remaining[header_end:]
                if len(parts) == 3 and parts[1] == b"blob" and parts[2].isdigit():
                    size = int(parts[2])
                    yield file, str(remaining[:size], "utf-8", "replace")
                    remaining = remaining[size + 1 :]

    def text(self, file: File) -> str:
        """Return the text of a file, or an empty string if git does not return it."""
        return next((text for _, text in self.read_texts([file])), "")

    @property
    def _error_location(self) -> str:
        return f"registry {self.name}"

    def _git(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        in_repository: bool = True,
        stdin: bytes = b"",
        max_bytes: int = output.MAX_BYTES,
    ) -> bytes:
        """Return git's output. Raises Unreachable if it fails. See `_run`."""
        code, stdout, stderr = self._run(argv, timeout_s, in_repository=in_repository, stdin=stdin, max_bytes=max_bytes)
        if code:
            message = f"git failed: {one_line(_error_line(stderr), max_chars=200)}."
            raise Unreachable(message, where=self._error_location, fix="Check the url in registries.yml.")
        return stdout

    def _run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        in_repository: bool = True,
        stdin: bytes = b"",
        max_bytes: int = output.MAX_BYTES,
    ) -> tuple[int, bytes, bytes]:
        """Run git without prompts. Return its exit code, output and errors. in_repository: run it in the cached repository."""
        git_dir = ["--git-dir", str(self.folder)] if in_repository else []
        try:
            return output.run(
                ["git", *SAFE_OPTIONS, *git_dir, *argv],
                stdin=stdin,
                timeout_s=timeout_s,
                env=_git_environment(local=self.url.startswith("file://")),
                max_bytes=max_bytes,
                limit_resources=partial(_limit_resources, int(timeout_s) + 1),
            )
        except FileNotFoundError:
            raise Failed("git is not installed.", fix="Install git on this laptop.") from None
        except output.ProgramTimeout:
            message = f"git did not finish within {timeout_s:.0f} s."
            raise Unreachable(message, where=self._error_location, fix="Check the network and the url.") from None
        except output.TooMuchOutput:
            message = (
                f"git's output exceeds {max_bytes // MIB} MiB: the repository has more files than a registry needs."
            )
            raise Refused(message, where=self._error_location, fix=NARROW_FIX) from None


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed fetches: old repositories, and git's unfinished packs and locks in the current one.

    They are recognized by name and age. Links are neither followed nor removed.

    Args:
        folder: the repository of a registry.
    """
    old_repositories = (path for path in folder.parent.iterdir() if OLD_REPOSITORY_PATTERN.fullmatch(path.name))
    unfinished_paths = (path for pattern in UNFINISHED_FILE_PATTERNS for path in folder.glob(pattern))
    for path in [*old_repositories, *unfinished_paths]:
        with contextlib.suppress(OSError):  # another command removed it first
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < MIN_LEFTOVER_AGE_S:
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(path)
            elif stat.S_ISREG(status.st_mode):
                path.unlink()


def _error_line(errors: bytes) -> str:
    """Return the line of git's error output that contains the reason, without a full stop at the end."""
    lines = errors.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
    return next((line for line in lines if line.startswith("fatal: ")), lines[-1]).rstrip(".")


def _batches(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield files in batches of at most MAX_BATCH_BYTES, or of a single file."""
    batch: list[File] = []
    size = 0
    for file in files:
        if batch and size + file.size_bytes > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size_bytes
    if batch:
        yield batch


def _git_environment(*, local: bool) -> dict[str, str]:
    env = {
        **os.environ,
        "GIT_ALLOW_PROTOCOL": "https:ssh:file" if local else "https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_COMMAND": f"{os.environ.get('GIT_SSH_COMMAND') or 'ssh'} -o BatchMode=yes",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_ALLOC_LIMIT": str(MAX_OBJECT_BYTES),
        "LC_ALL": "C",
    }
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"):
        env.pop(name, None)
    return env


def _limit_resources(cpu_s: int) -> None:
    """Limit this process and its children. macOS can't limit the address space, so only GIT_ALLOC_LIMIT limits memory there."""
    _lower_limit(resource.RLIMIT_FSIZE, MAX_PACK_BYTES)
    _lower_limit(resource.RLIMIT_CPU, cpu_s)
    if sys.platform == "linux":
        _lower_limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)


def _lower_limit(kind: int, maximum: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(kind, (limit, limit))
