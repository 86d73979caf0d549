"""A user's project on this machine's own Docker Engine, with the real vLLM for a CPU as what it serves with."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.e2e.conftest import CommandResult
from tests.real_engine.engine import Engine
from tests.real_llama.container_desk import Project as AnyDesk
from tests.real_llama.container_desk import run_docker

DENSE, RECURRENT = "tests/tiny-dense", "tests/tiny-gated-delta"
KINDS = {DENSE: "dense", RECURRENT: "gated_delta"}
#: eager: nothing is compiled. The share is of the host's memory, for what is not said in CACHE
FLAGS = {"served-model-name": "tiny", "max-model-len": 4096, "gpu-memory-utilization": 0.12, "enforce-eager": True}
#: of the KV cache on a CPU, GiB
CACHE = "VLLM_CPU_KVCACHE_SPACE"
#: TORCHDYNAMO_DISABLE: even then the first request for log probabilities has a kernel compiled, a minute on a busy machine
ENV = {CACHE: "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
OFF = {"chunked_prefill": "disabled"}


@dataclass(frozen=True)
class Shelf:
    """The images by version. usual: the version that is served unless another is said."""

    by_version: dict[str, str]
    usual: str

    def name(self, version: str) -> str:
        return self.by_version[version]

    def remove(self) -> None:
        """None of them is left in the Docker Engine; the same image from another registry stays."""
        for repository in {name.rpartition(":")[0] for name in self.by_version.values()}:
            rows = run_docker("images", "--digests", "--format", "{{.Repository}}@{{.Digest}}", repository, check=False)
            for image in set(rows.split()):
                run_docker("rmi", image, check=False)


#: run by root it empties the page cache of the machine, and the engine's programs are read again at each start
CACHE_DROPPED = re.compile(r"^(( *)page_cache:\n(?:\2 +.+\n)+)(?:\2when: .+\n)?", re.M)


class Project(AnyDesk):
    """Its playbooks are the shipped ones but for the page cache and what a busy machine makes slow: a token, and the rate it had before."""

    haste: ClassVar[dict[str, str]] = dict.fromkeys(("liveness", "reference_text", "verify_health"), "timeout_s: 180")
    timeout_s = 1800.0

    def __init__(self, folder: Path, shelf: Shelf, hub: str) -> None:
        super().__init__(folder, shelf, hub)
        self.shelf = shelf
        for book in (self.root / "playbooks").rglob("*.yml"):
            text = CACHE_DROPPED.sub(r"\1\2when: false\n", book.read_text())
            book.write_text(re.sub(r"^( +)(?=unclear: report)", r"\1new_baseline: true\n\1", text, flags=re.M))

    def write_recipe(
        self,
        *,
        model: str = DENSE,
        version: str = "",
        env: dict[str, str] | None = None,
        expect: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        **flags: Any,
    ) -> None:
        """Write the recipe for the next deploy. flags: with `_` for `-`. more: keys of the recipe beside the usual."""
        container = {
            "name": self.name,
            "gpus": "",
            "ports": [f"127.0.0.1:{self.port}:8000"],
            "env": {**ENV, **(env or {})},
        }
        stated = {
            "image": self.shelf.name(version or self.shelf.usual),
            "model": {"id": model, "dir": f"~/models/{KINDS[model]}", "mount": "/models/tiny"},
            "container": container,
            "publish": "loopback",
            "vllm": {**FLAGS, **{key.replace("_", "-"): value for key, value in flags.items()}},
            "expect": {"ready_s": 900, "answers": "any", **(expect or {})},
        }
        self.serves({**stated, **(more or {})})

    def deploy_proved(self, **recipe: Any) -> CommandResult:
        """The server of this recipe, proved. One that serves already is left alone."""
        self.write_recipe(**recipe)
        result = self.deploy()
        assert result.proved, result.out[-3000:] + result.err
        return result

    def is_fulfilled(self, **recipe: Any) -> bool:
        """Return True if a deploy of this recipe would change nothing."""
        self.write_recipe(**recipe)
        return self.run("plan", "--host", "here").code == 0

    def expect_refusal(self, **recipe: Any) -> str:
        """The sentence with which a deploy of this recipe is refused; what serves is not touched."""
        before = self.state()
        self.write_recipe(**recipe)
        result = self.deploy()
        # an image that was pulled first is something that was touched
        assert result.code == (1 if result.recap["changed"] else 5), result.out[-3000:] + result.err
        assert self.state() == before
        return str(result.recap["error"])

    def state(self) -> tuple[str, str, bool, str]:
        """The container: its Id, its last start, whether it runs, its restart policy."""
        attrs = self.container()
        state = attrs["State"]
        return attrs["Id"], state["StartedAt"], state["Running"], attrs["HostConfig"]["RestartPolicy"]["Name"]

    def is_generating(self) -> bool:
        """Return True if the health check, which requests a token, finds it healthy."""
        return self.run("health.check", "--host", "here").code == 0

    def settings(self) -> dict[str, Any]:
        """Return the settings of the last start, from the engine's log."""
        result = self.run("logs", "--host", "here", "--state", "--json")
        return dict(json.loads(result.out))

    def processes(self) -> dict[str, int]:
        """The processes in the container, by their titles, with the numbers that the host knows them by."""
        rows = run_docker("top", self.name, "-eo", "pid,args").splitlines()[1:]
        return {title: int(pid) for pid, _, title in (row.strip().partition(" ") for row in rows)}

    def wait_for_exit(self) -> int:
        """Wait for the container's end. Returns its exit code."""
        return int(run_docker("wait", self.name))

    def until(self, what: str, timeout_s: float = 60.0) -> None:
        """Wait until Docker calls the container this."""
        deadline_s = time.monotonic() + timeout_s
        while self.container()["State"]["Status"] != what:
            assert time.monotonic() < deadline_s, self.container()["State"]
            time.sleep(0.1)


def hub_files(engine: Engine) -> dict[str, dict[str, bytes]]:
    """The tiny models as a hub has them."""
    return {
        name: {path.name: path.read_bytes() for path in sorted((engine.models / kind).iterdir()) if path.is_file()}
        for name, kind in KINDS.items()
    }
