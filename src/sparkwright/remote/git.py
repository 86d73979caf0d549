"""A repository of recipes, read with git: one commit, no work tree, no hooks, no submodules, and only by the ways that it allows.

Nothing is checked out, so neither symlinks nor filters nor hooks of a stranger's repository come into play: files are read by
commit and path. Limits: FETCH_S, and the bytes that git may write.
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.errors import Failed, Unreachable
from sparkwright.host_side import cache
from sparkwright.trust import private
from sparkwright.units import MIB
from sparkwright.visible import one_line

FETCH_S, READ_S = 180.0, 30.0
#: of one file that git writes: a pack of all recipes that are known has 30 MB
MOST_PACK_BYTES = 512 * MIB
MOST_FILE_BYTES = MIB
MOST_FILES = 20_000
REGULAR = ("100644", "100755")
KEPT = "refs/sparkwright/fetched"
SAFE = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false",
    "-c", "fetch.fsckObjects=true", "-c", "core.symlinks=false", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
)  # fmt: skip


@dataclass(frozen=True)
class Repository:
    """url: https, ssh or file, which the user wrote. name: for messages."""

    url: str
    name: str

    @property
    def folder(self) -> Path:
        """Where this laptop keeps it; it can be fetched again."""
        return cache() / "registries" / f"{hashlib.sha256(self.url.encode()).hexdigest()[:20]}.git"

    def has(self, commit: str) -> bool:
        """Whether a commit is here already."""
        return self.folder.is_dir() and self._run(["cat-file", "-e", f"{commit}^{{commit}}"], READ_S).returncode == 0

    def fetch(self, wanted: str) -> str:
        """Fetch a branch, a tag, HEAD or a commit, that state alone. Returns its commit.

        Raises Unreachable, or Failed without git.
        """
        private.folder(self.folder.parent)
        if not (self.folder / "HEAD").is_file():
            self._git(["init", "--quiet", "--bare", str(self.folder)], READ_S, inside=False)
        words = ["fetch", "--quiet", "--depth", "1", "--no-tags", "--no-recurse-submodules", "--force", "--", self.url]
        self._git([*words, f"{wanted}:{KEPT}"], FETCH_S)
        return self._git(["rev-parse", f"{KEPT}^{{commit}}"], READ_S).decode().strip()

    def files(self, commit: str, below: str) -> list[str]:
        """The regular files of a folder at a commit, those that are not too large."""
        words = ["ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--", *([below.strip("/") + "/"] if below else [])]
        found = []
        for row in self._git(words, READ_S).split(b"\0")[:MOST_FILES]:
            about, _, path = row.partition(b"\t")
            parts = about.decode("ascii", "replace").split()
            if len(parts) == 4 and parts[0] in REGULAR and parts[3].isdigit() and int(parts[3]) <= MOST_FILE_BYTES:
                found.append(path.decode("utf-8", "replace"))
        return found

    def texts(self, commit: str, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Files at a commit, each with its text; one that git does not give back is left out."""
        asked = [path for path in paths if "\n" not in path]
        given = "".join(f"{commit}:{path}\n" for path in asked).encode()
        rest = self._git(["cat-file", "--batch"], READ_S, given=given) if asked else b""
        for path in asked:
            head, _, rest = rest.partition(b"\n")
            parts = head.split()
            if len(parts) == 3 and parts[1] == b"blob" and parts[2].isdigit():
                size = int(parts[2])
                yield path, rest[:size].decode("utf-8", "replace")
                rest = rest[size + 1 :]

    def text(self, commit: str, path: str) -> str:
        """A file at a commit; empty where git does not give it back."""
        return dict(self.texts(commit, [path])).get(path, "")

    def _git(self, words: Sequence[str], timeout_s: float, *, inside: bool = True, given: bytes = b"") -> bytes:
        done = self._run(words, timeout_s, inside=inside, given=given)
        if done.returncode:
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
            message = f"git says: {one_line(last[0], at_most=200)}."
            raise Unreachable(message, where=f"registry {self.name}", fix="Check the url in registries.yml.")
        return done.stdout

    def _run(
        self, words: Sequence[str], timeout_s: float, *, inside: bool = True, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """git, that asks nothing, in the C locale. Local repositories only where the user's url is one."""
        ways = "https:ssh:file" if self.url.startswith("file://") else "https:ssh"
        env = {
            **os.environ,
            "GIT_ALLOW_PROTOCOL": ways,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_SSH_COMMAND": f"{os.environ.get('GIT_SSH_COMMAND') or 'ssh'} -o BatchMode=yes",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "LC_ALL": "C",
        }
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"):
            env.pop(name, None)
        at = ["--git-dir", str(self.folder)] if inside else []
        try:
            return subprocess.run(
                ["git", *SAFE, *at, *words],
                env=env,
                input=given,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                preexec_fn=_limited,
            )
        except FileNotFoundError:
            raise Failed("git is not installed.", fix="Install git on this laptop.") from None
        except subprocess.TimeoutExpired:
            message = f"git did not finish in {timeout_s:.0f} s."
            raise Unreachable(message, where=f"registry {self.name}", fix="Check the network and the url.") from None


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_PACK_BYTES, MOST_PACK_BYTES))
