"""A user's project on this machine's Docker Engine that serves with the real vLLM for a CPU."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.e2e.conftest import CommandResult
from tests.real_engine.engine import Engine
from tests.real_llama.container_desk import Project as AnyDesk
from tests.real_llama.container_desk import run_docker

DENSE, RECURRENT = "tests/tiny-dense", "tests/tiny-gated-delta"
KINDS = {DENSE: "dense", RECURRENT: "gated_delta"}
#: eager: nothing is compiled. The utilization is a share of the host's memory; CACHE overrides it for the KV cache
FLAGS = {"served-model-name": "tiny", "max-model-len": 4096, "gpu-memory-utilization": 0.12, "enforce-eager": True}
#: variable with the size of the KV cache on a CPU, GiB
CACHE = "VLLM_CPU_KVCACHE_SPACE"
#: TORCHDYNAMO_DISABLE: otherwise the first request for log probabilities compiles a kernel, which may take a minute
ENV = {CACHE: "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
OFF = {"chunked_prefill": "disabled"}


@dataclass(frozen=True)
class Shelf:
    """The images by version. usual: the default version."""

    by_version: dict[str, str]
    usual: str

    def name(self, version: str) -> str:
        return self.by_version[version]

    def remove(self) -> None:
        """Remove the images from the Docker Engine, but not the same images from another registry."""
        for repository in {name.rpartition(":")[0] for name in self.by_version.values()}:
            rows = run_docker("images", "--digests", "--format", "{{.Repository}}@{{.Digest}}", repository, check=False)
            for image in set(rows.split()):
                run_docker("rmi", image, check=False)


#: a task that drops the page cache, as root that of the whole machine: each start would read the engine again
CACHE_DROPPED = re.compile(r"^(( *)page_cache:\n(?:\2 +.+\n)+)(?:\2when: .+\n)?", re.M)


def relax_playbooks(folder: Path) -> None:
    """Change playbooks for a busy machine: the page cache is kept, and an unclear rate becomes the new baseline."""
    for book in folder.rglob("*.yml"):
        text = CACHE_DROPPED.sub(r"\1\2when: false\n", book.read_text())
        book.write_text(re.sub(r"^( +)(?=unclear: report)", r"\1new_baseline: true\n\1", text, flags=re.M))


class Project(AnyDesk):
    """A project with the shipped playbooks, relaxed for a busy machine."""

    haste: ClassVar[dict[str, str]] = dict.fromkeys(("liveness", "reference_text", "verify_health"), "timeout_s: 180")
    timeout_s = 1800.0

    def __init__(self, folder: Path, shelf: Shelf, hub: str) -> None:
        super().__init__(folder, shelf, hub)
        self.shelf = shelf
        relax_playbooks(self.root / "playbooks")

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
        """Write the recipe for the next deploy. flags: with `_` for `-`. more: additional keys of the recipe."""
        ports = [f"127.0.0.1:{self.port}:8000"]
        recipe = {
            "image": self.shelf.name(version or self.shelf.usual),
            "model": {"id": model, "dir": f"~/models/{KINDS[model]}", "mount": "/models/tiny"},
            "container": {"name": self.name, "gpus": "", "ports": ports, "env": {**ENV, **(env or {})}},
            "publish": "loopback",
            "vllm": {**FLAGS, **{key.replace("_", "-"): value for key, value in flags.items()}},
            "expect": {"ready_s": 900, "answers": "any", **(expect or {})},
        }
        self.serves({**recipe, **(more or {})})

    def deploy_proved(self, **recipe: Any) -> CommandResult:
        """Deploy this recipe and assert that its server is verified. A server with this recipe is not changed."""
        self.write_recipe(**recipe)
        result = self.deploy()
        assert result.proved, result.out[-3000:] + result.err
        return result

    def is_fulfilled(self, **recipe: Any) -> bool:
        """Return True if a deploy of this recipe would change nothing."""
        self.write_recipe(**recipe)
        return self.run("plan", "--host", "here").code == 0

    def expect_refusal(self, **recipe: Any) -> str:
        """Return the sentence with which a deploy of this recipe is refused; the running server must not change."""
        before = self.state()
        self.write_recipe(**recipe)
        result = self.deploy()
        # exit code 1 if an image was pulled before
        assert result.code == (1 if result.recap["changed"] else 5), result.out[-3000:] + result.err
        assert self.state() == before
        return str(result.recap["error"])

    def state(self) -> tuple[str, str, bool, str]:
        """Return the container's id, last start, whether it is running, and restart policy."""
        attrs = self.container()
        state = attrs["State"]
        return attrs["Id"], state["StartedAt"], state["Running"], attrs["HostConfig"]["RestartPolicy"]["Name"]

    def is_same_container(self, before: tuple[str, str, bool, str]) -> bool:
        """Return True if the id and the restart policy are those of an earlier state."""
        now = self.state()
        return (now[0], now[3]) == (before[0], before[3])

    def kill(self, pid: int, number: int) -> int:
        """Send a signal to a process of the container, and assert that its exit is reported. Return the exit code.

        Docker does not start it again, so that the exit can be observed.
        """
        run_docker("update", "--restart", "no", self.name)
        os.kill(pid, number)
        code = int(run_docker("wait", self.name))
        assert self.run("health.check", "--host", "here").code == 1
        self.assert_failure("status", f"exited ({code})")
        return code

    def assert_failure(self, command: str, text: str) -> None:
        """Assert that a command reports a failure with this text."""
        result = self.run(command, "--host", "here")
        assert result.code == 1 and text in result.out, result.out

    def is_generating(self) -> bool:
        """Return True if the health check, which requests a token, finds it healthy."""
        return self.run("health.check", "--host", "here").code == 0

    def settings(self) -> dict[str, Any]:
        """Return the settings of the last start, from the engine's log."""
        result = self.run("logs", "--host", "here", "--state", "--json")
        return dict(json.loads(result.out))

    def processes(self) -> dict[str, int]:
        """Return the ids of the container's processes on the host, by title."""
        rows = run_docker("top", self.name, "-eo", "pid,args").splitlines()[1:]
        return {title: int(pid) for pid, _, title in (row.strip().partition(" ") for row in rows)}


def hub_files(engine: Engine) -> dict[str, dict[str, bytes]]:
    """Return the files of the tiny models for a hub, by repository."""
    return {
        name: {path.name: path.read_bytes() for path in sorted((engine.models / kind).iterdir()) if path.is_file()}
        for name, kind in KINDS.items()
    }
