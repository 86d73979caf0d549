"""Damaged foreign recipes in four formats, docker run lines and running containers are imported, or refused with one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.queries import host_requests
from sparkwright.errors import Failed, Refused
from sparkwright.modules.server.server_inspection import ContainerSettings
from sparkwright.project.importing import container, format_detection, recipe_builder
from sparkwright.project.importing.foreign_recipe import ImportReport
from tests.fuzz.harness import damaged_values, feed, feed_texts
from tests.fuzz.test_images import CONTAINER, IMAGE
from tests.modules.context import RecordingContext
from tests.project.importing.forms import COMPOSE, EUGR, SPARKRUN_2, VLLM
from tests.project.importing.test_running import SETTINGS

#: keys that the small examples of tests/project/importing do not have
MORE: dict[str, str] = {
    "vllm": """
dependencies: [{command: pip install x, optional: false}, {note: y}]
strategy_overrides: {single_node_tp: {extra_args: ["--a"], hardware_overrides: {blackwell: {extra_args: ["--b", 1]}}}}
guide: text
turbo: fast
""",
    "sparkrun": """
model_revision: 1234567
containers: {a: a/b:1, b: c/d:2}
overrides:
- {when: {arch: arm64, nodes: 1}, defaults: {max_model_len: 8192}, env: {VLLM_A: 2}}
- {when: {platform: quiet}, container: a/b:1}
mods: [mods/fix-template]
pre_exec: [curl x]
min_nodes: 1
mode: solo
""",
    "compose": """
  more:
    <<: {image: "a/vllm:1", entrypoint: [vllm, serve]}
    command: ["--model", acme/Tiny, "--port", 8000]
    environment: {A: 1, B: null, TOKEN: x}
    ports: [8000, {published: 8000, target: 8001, protocol: tcp}]
    volumes: [{type: bind, source: /a, target: /b, read_only: true}]
    ulimits: {memlock: -1, stack: {soft: 1, hard: 2}}
    labels: [a=b]
    oom_score_adj: 5
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}, limits: {cpus: "4"}}}
    devices: [/dev/infiniband]
    cap_add: IPC_LOCK
    mem_limit: 64gb
    init: true
    restart: always
    env_file: [.env]
    logging: {driver: json-file}
""",
}
FORMS = {
    "vllm": [VLLM, VLLM + MORE["vllm"]],
    "sparkrun": [SPARKRUN_2, SPARKRUN_2 + MORE["sparkrun"], SPARKRUN_2.partition("command:")[0]],
    "eugr": [EUGR, EUGR + "mods: [mods/x]\nbuild_args: {a: 1}\n"],
    "compose": [COMPOSE, COMPOSE + MORE["compose"]],
}
ANSWERS: tuple[dict[str, str], ...] = (
    {},
    {"image": "a/b:1", "mods": "drop", "pre_exec": "drop", "dependencies": "drop"},
    {"service": "more", "container": "a", "hosts": "2"},
    {"variant": "default", "hosts": "1", "model": "a/b", "engine": "vllm", "override-2": "take"},
)
LINES = [
    b"docker run -d --gpus all -p 8000:8000 -e A=1 --ulimit memlock=-1 --mount type=bind,source=/a,target=/b --oom-score-adj 5 "
    b'-v /m:/m vllm/vllm-openai:v0.32.0 --model acme/Tiny -tp 2 --speculative-config \'{"model": "a/b"}\'',
    b"sudo docker container run --rm -it --name=x --ipc=host --shm-size 16g -v $HOME/.cache:/root/.cache \\\n  --device /dev/fuse "
    b'--cap-add=ALL --entrypoint bash lmsysorg/sglang:v0.5.23 -c "python3 -m sglang.launch_server --model-path a/b --port 30000"',
    b"# a comment\n$ podman run --stop-timeout 5 --env B --label a=b --network host --memory 64g ghcr.io/ggml-org/llama.cpp:server-cuda "
    b"-hf a/b:Q4_K_M -c 4096 -ngl 99 --host 0.0.0.0",
]

HOST_CONFIG: dict[str, Any] = {
    **CONTAINER["HostConfig"], "NetworkMode": "host", "PidMode": "host", "Privileged": True, "Init": True,
    "CapAdd": ["IPC_LOCK"], "SecurityOpt": ["seccomp=unconfined"], "ExtraHosts": ["a:192.0.2.1"],
    "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}],
    "Memory": 2**36, "MemorySwap": 2**37, "NanoCpus": 1_500_000_000, "CpusetCpus": "0", "OomScoreAdj": 50,
    "Tmpfs": {"/scratch": "size=64m"}, "Sysctls": {"net.core.somaxconn": "64"},
    "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m"}},
}  # fmt: skip
CONFIG = {
    **CONTAINER["Config"], "Image": "vllm/vllm-openai:v0.32.0",
    "Env": ["PATH=/bin", "HF_TOKEN=hf_0123456789", "LD_PRELOAD=/x.so"],
    "Cmd": ["--model", "Qwen/Qwen3-8B", "--api-key", "secret", "--max-model-len", "4096"],
    "User": "1000", "WorkingDir": "/srv", "Hostname": "spark.lan", "StopSignal": "SIGINT",
    "Healthcheck": {"Test": ["CMD-SHELL", "true"], "Interval": 90 * 10**9, "Retries": 4},
}  # fmt: skip
#: a value for each option, as `container_settings` returns it
OPTIONS: dict[str, Any] = {
    "restart": "no", "gpus": "device=0", "ipc": "host", "shm_size": "64gb", "ulimits": {"memlock": "-1"},
    "labels": {"team": "a"}, "networks": ["name=back,alias=x"], "hostname": "llm", "extra_hosts": ["a:host-gateway"],
    "dns": ["192.0.2.1"], "user": "1000:1000", "group_add": ["44"], "privileged": True, "cap_add": ["SYS_PTRACE"],
    "cap_drop": ["ALL"], "security_opt": ["seccomp=unconfined"], "devices": ["/dev/a:/dev/b:rw"], "pid": "host",
    "init": False, "working_dir": "/srv", "stop_signal": "SIGINT", "tmpfs": ["/tmp:size=1g"], "cpus": 1.5,
    "healthcheck": {"test": "curl x", "interval": "30s", "retries": "3"}, "sysctls": {"net.core.somaxconn": "1024"},
    "memory": "100gb", "memory_swap": "-1", "cpuset_cpus": "0-9", "oom_score_adj": 5, "log_driver": "local",
    "log_options": {"max-size": "100m"},
}  # fmt: skip
MANY_CPUS = {"cpuset_cpus": ",".join(["0-9999"] * 20_000)}
NETWORKS = {"host": {"Aliases": None}, "other": {"Aliases": ["vllm"]}}
RUNNING = {**CONTAINER, "Config": CONFIG, "HostConfig": HOST_CONFIG, "NetworkSettings": {"Networks": NETWORKS}}


def import_text(text: str, path: str = "recipe.yaml") -> None:
    """Import a text as `recipe.import` does, with some of the answers. A refusal must be a single line."""
    report = ImportReport(dict(ANSWERS[len(text) % len(ANSWERS)]))
    try:
        imported = recipe_builder.build_recipe(format_detection.parse(text, Path(path), report), "", report, path)
    except Refused as error:
        assert "\n" not in str(error), str(error)
        assert len(str(error)) < 2500, str(error)
        raise
    assert imported.text or report.questions


def import_settings(answer: Any, report: ImportReport | None = None) -> None:
    """Import the settings of a running container, as a host answers them."""
    settings = host_requests.validate_answer("container_settings", answer, host="spark1")
    report = report or ImportReport({"model": "a/b", "file": "*Q4*", "engine": "vllm"})
    recipe_builder.build_recipe(container.convert_running(settings, "spark1", report), "", report, "spark1")


@pytest.mark.parametrize("form", FORMS)
def test_recipes_in_a_foreign_format(form: str) -> None:
    seeds = [yaml.safe_load(text) for text in FORMS[form]]
    feed(lambda value: import_text(yaml.safe_dump(value, allow_unicode=True)), damaged_values(seeds))
    feed_texts(import_text, [text.encode() for text in FORMS[form]])


def test_docker_run_lines() -> None:
    feed_texts(lambda text: import_text(text, "docker run"), LINES)


def test_inspected_containers(tmp_path: Path) -> None:
    def read(value: Any) -> None:
        context = RecordingContext(tmp_path)
        context.docker = lambda: FakeEngine(value)  # type: ignore[method-assign, assignment, return-value]
        result = ContainerSettings().run(ContainerSettings.Args(name="qwen35"), context)
        import_settings(json.loads(json.dumps(result.data)))

    feed(read, damaged_values([RUNNING]), refuses=(Failed,))


class FakeEngine:
    """A Docker Engine with this container."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.api = self

    def inspect_container(self, name: str) -> Any:
        return self.container

    def inspect_image(self, name: str) -> Any:
        return IMAGE

    def containers(self, **options: Any) -> list[Any]:
        return [self.container]


def test_settings_of_a_running_container() -> None:
    feed(import_settings, damaged_values([SETTINGS]), refuses=(Failed,))


def test_options_of_a_running_container() -> None:
    def read(options: Any) -> None:
        import_settings({**SETTINGS, "network": "name=lan,alias=llm", "options": options}, ImportReport())

    read(OPTIONS)
    feed(read, damaged_values([OPTIONS, MANY_CPUS]), refuses=(Failed,))
