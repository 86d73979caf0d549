"""The project of tests/cluster with the real vLLM for a CPU: two ranks in containers of two Docker Engines, connected by gloo."""

import re
from pathlib import Path
from typing import Any

from tests.cluster.checks import Checks
from tests.cluster.pair import ClusterPair
from tests.real_engine.container.desk import DENSE, ENV, FLAGS, Shelf, relax_playbooks
from tests.real_engine.group.pair import THREADS

#: longer timeouts in the shipped playbooks, for a busy machine
PATIENCE = dict.fromkeys(("liveness", "reference_text"), "timeout_s: 180")
#: limits of a scheduled check: a group without a warm-up is slow to generate its first token
LIMITS = {"token_s": 120.0}
#: with a shared /dev/shm the ranks would assume that they are on one host, and wait for each other at a socket in a shared /tmp
APART = {"ipc": "private", "shm_size": "2g"}


class RealPair(ClusterPair):
    """A cluster with the shipped playbooks, relaxed for a busy machine."""

    model = "tiny"
    timeout_s, token_s = 1800.0, 180.0

    def __init__(self, folder: Path, shelf: Shelf, hub: str, engines: tuple[str, str]) -> None:
        self.shelf = shelf
        super().__init__(folder, shelf, hub, engines)
        relax_playbooks(self.root / "playbooks")
        for book in (self.root / "playbooks").rglob("*.yml"):
            text = book.read_text()
            for module, words in PATIENCE.items():
                text = re.sub(rf"( {module}:\n)( +)", rf"\1\2{words}\n\2", text)
            book.write_text(text)

    def recipe(self, fault: str = "", **flags: Any) -> None:
        """Write the recipe as Pair does; the real engine simulates no faults."""
        renamed = {key.replace("_", "-"): value for key, value in flags.items()}
        defaults = {**FLAGS, "max-model-len": 2048, "host": "127.0.0.1", "port": self.port}
        container = {"name": self.name, "gpus": "", "env": {**ENV, **THREADS}, **APART, "ulimits": {"nofile": "1024"}}
        self.write_recipe(
            {
                "image": self.shelf.name(self.shelf.usual),
                "model": {"id": DENSE, "dir": "~/models/tiny", "mount": "/models/tiny"},
                "container": container,
                "parallel": {"tensor": 2},
                "vllm": {**defaults, **renamed},
                "expect": {"ready_s": 900, "answers": "any"},
            }
        )

    def rank_of(self, host: str) -> int:
        """Return the id of the process of this member's rank on this machine."""
        lines = self.docker(host, "top", self.name, "-eo", "pid,args").splitlines()
        rows = (row.strip().partition(" ") for row in lines)
        return next(int(pid) for pid, _, title in rows if "VLLM::Worker" in title)


class RealChecks(Checks):
    """Checks with the timeouts of RealPair."""

    ends_within_s = 1800.0
