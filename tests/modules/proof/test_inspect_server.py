"""Inspection of a real container: its image, arguments and server, and its differences from the recipe."""

import contextlib
import dataclasses
import json
import secrets
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.host.containers import container_options
from sparkwright.modules.proof.inspect_server import InspectServer
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Result
from tests.host.containers.test_log_reader import engine, shell
from tests.modules.context import RecordingContext
from tests.remote.sshd import free_port
from tests.sandbox.vllm.test_startup import LLAMA
from tests.waiting import wait_until

__all__ = ["engine", "shell"]

pytestmark = pytest.mark.docker
SOURCE = Path(__file__).parents[3] / "src"
SERVE = {"served_name": "tiny", "tok_per_s": 47.0, "baseline_key": {"image": "recipe's"}, "log": {"expect": ["graphs"]}}


@dataclass
class ServedContainer:
    """A container of the sandbox's engine, and its spec."""

    api: Any
    id: str
    spec: ContainerSpec
    model: Path
    context: RecordingContext

    def inspect(self, spec: ContainerSpec | None = None) -> Result:
        args = InspectServer.Args(spec=(spec or self.spec).to_json(), serve=SERVE, recipe="r", host="spark1")
        return InspectServer().run(args, self.context)


@pytest.fixture
def served(engine: docker.DockerClient, shell: str, tmp_path: Path) -> Iterator[ServedContainer]:
    """Yield a container that runs the sandbox's engine with this machine's Python."""
    api: Any = engine.api
    name, model = f"test-inspect-{secrets.token_hex(4)}", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    image = api.inspect_image(shell)["Id"]
    mounts = {str(Path(path)) for path in ("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, SOURCE)}
    spec = ContainerSpec(
        name=name,
        image=f"{shell}@sha256:{'a' * 64}",
        image_ids=(image,),
        gpus="",
        ipc="",
        ports=(f"127.0.0.1:{free_port()}:8000",),
        volumes=(f"{model}:/models/m", *(f"{path}:{path}:ro" for path in sorted(mounts) if Path(path).exists())),
        env={"PYTHONPATH": str(SOURCE), "SPARKWRIGHT_SANDBOX_SPEED": "instant"},
        entrypoint=(sys.executable, "-m", "sparkwright.sandbox.vllm", "serve"),
        command=(
            "--model", "/models/m", "--served-model-name", "tiny", "--max-model-len", "4096", "--max-num-seqs", "8",
        ),
    )  # fmt: skip
    config = {**container_options.build_create_body(spec), "Image": image}
    container_id = api.create_container_from_config(config, name)["Id"]
    try:
        api.start(container_id)
        wait_for_answer(api, container_id, spec)
        yield ServedContainer(api, container_id, spec, model, RecordingContext(tmp_path))
    finally:
        for container in api.containers(all=True, filters={"name": name}):
            api.remove_container(container["Id"], force=True)


def wait_for_answer(api: Any, container_id: str, spec: ContainerSpec) -> None:
    def is_answering() -> bool:
        assert api.inspect_container(container_id)["State"]["Running"], api.logs(container_id).decode()
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{spec.ports[0].rpartition(':')[0]}/health", timeout=2).close()
            return True
        return False

    wait_until(is_answering, "an answer")


def test_server_that_matches_the_recipe_is_compared_with_it(served: ServedContainer) -> None:
    result = served.inspect()
    assert (result.failed, result.data["drift"], result.data["id"]) == (False, [], served.id)
    assert (result.data["flags"]["max-num-seqs"], result.data["model_dir"]) == ("8", str(served.model))
    assert (result.data["models"], result.data["loopback"]) == ({"tiny": 4096}, True)
    assert result.data["base_url"] == f"http://{served.spec.ports[0].rpartition(':')[0]}"
    assert [check["verdict"] for check in result.data["checks"]] == ["proved"]
    assert result.data["expected"]["tok_per_s"] == SERVE["tok_per_s"]
    assert result.data["expected"]["baseline_key"] == SERVE["baseline_key"]


def test_changed_server_is_reported_by_field_and_compared_with_its_own_record(served: ServedContainer) -> None:
    other = dataclasses.replace(
        served.spec,
        image=f"{served.spec.name}:v2@sha256:{'b' * 64}",
        image_ids=(f"sha256:{'b' * 64}",),
        command=tuple("4" if word == "8" else word for word in served.spec.command),
    )
    result = served.inspect(other)
    assert [item["field"] for item in result.data["drift"]] == ["image", "--max-num-seqs"]
    assert [check["verdict"] for check in result.data["checks"]] == ["differs", "differs"]
    assert "`invoke deploy --host spark1`" in result.data["checks"][-1]["fix"]
    assert "--max-num-seqs" in result.msg
    assert (result.data["expected"]["tok_per_s"], result.data["expected"]["baseline_key"]) == (None, {})
    serve = {"served_name": "tiny", "tok_per_s": 12.0, "baseline_key": {"image": "verified"}}
    verified = {"spec": served.spec.to_json(), "serve": serve, "container_id": served.id, "since": time.time()}
    served.context.state.write("verified", verified)
    expected = served.inspect(other).data["expected"]
    assert (expected["tok_per_s"], expected["baseline_key"]) == (12.0, {"image": "verified"})
    renamed = served.inspect(dataclasses.replace(served.spec, name="another-name"))
    assert [item["field"] for item in renamed.data["drift"]] == ["name"]


def test_missing_server_is_explained(served: ServedContainer) -> None:
    served.api.stop(served.id, timeout=5)
    stopped = served.inspect()
    assert stopped.failed and stopped.data["evidence"] != []
    assert f"{served.spec.name} has exited (exit code " in stopped.msg and " s ago)" in stopped.msg
    served.api.remove_container(served.id)
    removed = served.inspect()
    assert removed.failed and f"there is no container {served.spec.name}" in removed.msg
