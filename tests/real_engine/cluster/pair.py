"""The project of tests/cluster, serving the real vLLM for a CPU: two ranks in containers of two Docker Engines, gloo between them."""

import re
from pathlib import Path
from typing import Any

from tests.cluster.checks import Checks
from tests.cluster.pair import ClusterPair
from tests.real_engine.container.desk import CACHE_DROPPED, DENSE, ENV, FLAGS, Shelf
from tests.real_engine.group.pair import THREADS

#: of the shipped cluster's playbooks, what a busy machine makes slow
PATIENCE = dict.fromkeys(("liveness", "reference_text"), "timeout_s: 180")
#: of a scheduled check: a group without a warm-up takes long for its first token
LIMITS = {"token_s": 120.0}
#: with one /dev/shm between them the ranks take themselves for members of one host, and wait for each other at a socket that only
#: a common /tmp would have
APART = {"ipc": "private", "shm_size": "2g"}


class RealPair(ClusterPair):
    """Its playbooks are the shipped ones but for the page cache, patience, and the rate that it had before."""

    model = "tiny"
    timeout_s, token_s = 1800.0, 180.0

    def __init__(self, folder: Path, shelf: Shelf, hub: str, engines: tuple[str, str]) -> None:
        self.shelf = shelf
        super().__init__(folder, shelf, hub, engines)
        for book in (self.root / "playbooks").rglob("*.yml"):
            text = CACHE_DROPPED.sub(r"\1\2when: false\n", book.read_text())
            for module, words in PATIENCE.items():
                text = re.sub(rf"( {module}:\n)( +)", rf"\1\2{words}\n\2", text)
            book.write_text(re.sub(r"^( +)(?=unclear: report)", r"\1new_baseline: true\n\1", text, flags=re.M))

    def recipe(self, fault: str = "", **flags: Any) -> None:
        """Write the recipe as Pair does; the real engine simulates no faults."""
        renamed = {key.replace("_", "-"): value for key, value in flags.items()}
        defaults = {**FLAGS, "max-model-len": 2048, "host": "127.0.0.1", "port": self.port}
        self.write_recipe(
            {
                "image": self.shelf.name(self.shelf.usual),
                "model": {"id": DENSE, "dir": "~/models/tiny", "mount": "/models/tiny"},
                "container": {
                    "name": self.name,
                    "gpus": "",
                    "env": {**ENV, **THREADS},
                    **APART,
                    "ulimits": {"nofile": "1024"},
                },
                "parallel": {"tensor": 2},
                "vllm": {**defaults, **renamed},
                "expect": {"ready_s": 900, "answers": "any"},
            }
        )

    def rank_of(self, host: str) -> int:
        """The process of this member's rank, by the number that this machine knows it by."""
        lines = self.docker(host, "top", self.name, "-eo", "pid,args").splitlines()
        rows = (row.strip().partition(" ") for row in lines)
        return next(int(pid) for pid, _, title in rows if "VLLM::Worker" in title)


class RealChecks(Checks):
    """Checks with the timeouts of RealPair."""

    ends_within_s = 1800.0
