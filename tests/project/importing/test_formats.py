"""Recipes of other tools become recipes of sparkwright; the report lists what was dropped, translated or needs an answer."""

import pytest
import yaml

from tests.project.importing.forms import (
    COMPOSE,
    EUGR,
    SPARKRUN_2,
    VLLM,
    format_rows,
    import_data,
    import_recipe,
    list_questions,
)


def test_vllm_recipe_with_overrides_for_a_spark() -> None:
    imported = import_recipe(VLLM)
    data = yaml.safe_load(imported.text)
    assert imported.name == "tiny-30b-nvfp4"
    assert data["model"]["id"] == "acme/Tiny-30B-NVFP4"
    assert data["image"] == "vllm/vllm-openai:v0.32.0"
    assert data["vllm"] == {
        "max-num-seqs": 8,  # the last of two
        "kv-cache-dtype": "fp8",
        "gpu-memory-utilization": 0.8,
        "default-chat-template-kwargs": {"enable_thinking": True},
        "enable-auto-tool-choice": True,
        "tool-call-parser": "hermes",
        "served-model-name": "acme/Tiny-30B-NVFP4",
    }
    assert data["container"]["env"] == {"VLLM_A": "1", "VLLM_B": "2", "VLLM_C": "3"}
    assert "spec_decoding" in format_rows(imported, "dropped")
    notes = format_rows(imported, "note")
    assert "0.24.0 or newer" in notes and "expect.probes: [tool_call]" in notes


def test_question_for_one_of_several_checkpoints() -> None:
    text = VLLM.replace("dgx_spark_gb10:\n", "h100:\n")
    options = import_recipe(text).report.questions
    assert [(item.key, item.choices) for item in options] == [("variant", ("default", "nvfp4"))]
    assert import_data(text, variant="default")["model"]["id"] == "acme/Tiny-30B"


def test_sparkrun_recipe() -> None:
    imported = import_recipe(SPARKRUN_2, "tiny-fp8.yaml")
    data = yaml.safe_load(imported.text)
    assert data["vllm"] == {
        "max-model-len": 4096,
        "gpu-memory-utilization": 0.8,
        "load-format": "fastsafetensors",
        "served-model-name": "acme/Tiny-30B-FP8",
    }
    assert data["container"] == {
        "name": "tiny-fp8",
        "ports": ["8001:8000"],
        "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
        "entrypoint": ["vllm", "serve"],
    }
    assert data["publish"] == "loopback"
    assert all(word in format_rows(imported, "dropped") for word in ("privileged", "network host"))


def test_defaults_become_flags_without_a_command() -> None:
    text = """
recipe_version: "2"
model: acme/Tiny
runtime: sglang
container: lmsysorg/sglang:v0.5.23
solo_only: true
defaults: {gpu_memory_utilization: 0.8, max_model_len: 4096, max_num_seqs: 4, tool_call_parser: qwen}
"""
    data = import_data(text)
    assert data["sglang"] == {
        "mem-fraction-static": 0.8,
        "context-length": 4096,
        "max-running-requests": 4,
        "tool-call-parser": "qwen",
        "served-model-name": "acme/Tiny",
    }


def test_sparkrun_overrides() -> None:
    text = f"""{SPARKRUN_2}overrides:
      - {{when: {{arch: arm64, nodes: 1}}, defaults: {{max_model_len: 8192}}, env: {{VLLM_A: 2}}}}
      - {{when: {{arch: x86_64}}, container: ghcr.io/acme/other:1}}
      - {{when: {{platform: quiet}}, defaults: {{gpu_memory_utilization: 0.5}}}}
    """
    assert list_questions(text) == ["override-3"]
    without, applied = (import_data(text, override_3=answer) for answer in ("drop", "take"))
    assert without["vllm"]["max-model-len"] == 8192 and without["container"]["env"]["VLLM_A"] == "2"
    assert without["image"] == "ghcr.io/acme/vllm:latest"
    assert [data["vllm"]["gpu-memory-utilization"] for data in (without, applied)] == [0.8, 0.5]
    dropped = format_rows(import_recipe(text, override_3="drop"), "dropped")
    assert "override 2: its condition is false (arch: x86_64)" in dropped and "override 3" in dropped


def test_question_for_one_of_several_images() -> None:
    text = SPARKRUN_2.replace("container: ghcr.io/acme/vllm:latest", "containers: {small: acme/s:1, large: acme/l:1}")
    assert list_questions(text) == ["container"]
    assert import_data(text, container="large")["image"] == "acme/l:1"


def test_eugr_recipe_for_several_hosts() -> None:
    imported = import_recipe(EUGR, image="vllm/vllm-openai:v0.32.0")
    data = yaml.safe_load(imported.text)
    assert data["parallel"] == {"tensor": 2}
    assert data["vllm"] == {
        "port": 8000,
        "served-model-name": "acme/Tiny-30B-FP8",
        "gpu-memory-utilization": 0.8,
        "compilation-config": {"cudagraph_mode": "FULL"},
    }
    assert "ports" not in data["container"] and "publish" not in data
    dropped = format_rows(imported, "dropped")
    assert "--distributed-executor-backend ray" in dropped and "network host" not in dropped
    assert imported.hosts == 2


def test_gguf_file_of_the_hub() -> None:
    text = """
model: acme/Tiny-GGUF:Q8_0
runtime: llama-cpp
max_nodes: 1
container: ghcr.io/acme/llama:b1
defaults: {port: 8000, ctx_size: 4096}
command: llama-server -hf {model} --port {port} --ctx-size {ctx_size} --flash-attn on --no-mmap -ngl 99
"""
    data = import_data(text)
    assert data["engine"] == "llama_cpp"
    assert data["model"] == {
        "id": "acme/Tiny-GGUF",
        "file": "*Q8_0*.gguf",
        "dir": "~/models/tiny-gguf",
        "mount": "/models/tiny-gguf",
    }
    assert data["llama_cpp"]["ctx-size"] == 4096 and data["container"]["ports"] == ["8000:8080"]


def test_compose_service() -> None:
    imported = import_recipe(COMPOSE, service="llm")
    data = yaml.safe_load(imported.text)
    assert data["engine"] == "sglang" and data["model"]["id"] == "acme/Tiny"
    assert data["sglang"] == {"mem-fraction-static": 0.7, "served-model-name": "acme/Tiny"}
    assert data["container"] == {
        "name": "llm",
        "ipc": "host",
        "shm_size": "32gb",
        "ports": ["8080:30000"],
        "env": {"SGLANG_A": "1"},
        "volumes": ["/srv/extra:/extra:ro"],
    }
    assert "HF_TOKEN" in format_rows(imported, "secret")
    dropped = format_rows(imported, "dropped")
    assert all(word in dropped for word in ("healthcheck", "privileged", "./data", "service web"))


def test_compose_service_and_docker_run_give_the_same_recipe() -> None:
    service = """
services:
  llm:
    image: acme/vllm:1
    container_name: mine
    entrypoint: ["vllm", "serve"]
    command: acme/Tiny --port 8001
    environment: {A: "1"}
    ports: [{published: 9000, target: 8001}]
    volumes: [{source: /srv/m, target: /m, read_only: true}]
    init: true
    mem_limit: 100gb
    oom_score_adj: -500
    cap_add: [SYS_NICE]
    devices: ["/dev/infiniband:/dev/infiniband"]
    extra_hosts: {a: 10.0.0.1}
    ulimits: {memlock: -1, nofile: {soft: 1024, hard: 2048}}
    labels: [team=lab, bare]
    cpus: 4
    sysctls: {net.core.somaxconn: 1024}
"""
    command = (
        "docker run --name mine --entrypoint vllm -e A=1 -p 9000:8001 -v /srv/m:/m:ro --init --memory 100gb --oom-score-adj=-500 "
        "--cap-add SYS_NICE --device /dev/infiniband:/dev/infiniband --add-host a:10.0.0.1 --ulimit memlock=-1 --ulimit nofile=1024:2048 "
        "--label team=lab --label bare= --cpus 4 --sysctl net.core.somaxconn=1024 acme/vllm:1 serve acme/Tiny --port 8001"
    )
    from_service, from_command = (import_data(text, name="t1") for text in (service, command))
    assert from_service == from_command
    assert from_service["container"]["labels"] == {"team": "lab", "bare": ""}
    assert from_service["container"]["init"] is True
    assert from_service["container"]["ulimits"] == {"memlock": "-1", "nofile": "1024:2048"}


def test_only_service_with_an_engine_is_imported() -> None:
    data = import_data(COMPOSE)
    assert data["engine"] == "sglang" and data["container"]["name"] == "llm"
    both = COMPOSE.replace("nginx:1", "vllm/vllm-openai:v0.32.0")
    assert "service" in list_questions(both)


def test_compose_anchors_are_merged_and_secrets_left_out() -> None:
    imported = import_recipe(
        """
x-common: &common
  image: vllm/vllm-openai:v0.32.0
  ipc: host
  environment: {HF_TOKEN: "${HF_TOKEN}", A: "1"}
services:
  llm:
    <<: *common
    command: --model acme/Tiny --api-key ${API_KEY} --seed ${SEED:-7}
    environment: {HF_TOKEN: "${HF_TOKEN:-hf_0123456789abcdefghij}", B: "2"}
    deploy: {replicas: 2, resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
"""
    )
    assert imported.report.questions == []
    data = yaml.safe_load(imported.text)
    assert data["image"] == "vllm/vllm-openai:v0.32.0" and data["container"]["ipc"] == "host"
    assert data["container"]["env"] == {"B": "2"} and data["vllm"] == {"seed": 7, "served-model-name": "acme/Tiny"}
    assert data["server_key"] == {"env": "SPARK_KEY"}
    assert "HF_TOKEN" in format_rows(imported, "secret") and "hf_0123" not in imported.text + str(imported.report)
    assert "deploy: replicas" in format_rows(imported, "dropped")
    assert "deploy: devices" in format_rows(imported, "translated")


def test_docker_run_command() -> None:
    digest = "sha256:" + "a" * 64
    imported = import_recipe(f"""docker run -d --rm --runtime nvidia --gpus all --ipc=host --network host --privileged \\
  --ulimit memlock=-1 -e HF_TOKEN=hf_0123456789abcdefghij -e VLLM_X=1 --name mine \\
  -v ~/.cache/huggingface:/root/.cache/huggingface \\
  vllm/vllm-openai:v0.31.0@{digest} --model acme/Tiny-8B --port 8100 --api-key sk-0123456789abcdefghij -tp 1 --enforce-eager""")
    data = yaml.safe_load(imported.text)
    assert imported.name == "mine" and imported.image_digest == digest
    assert data["image"] == "vllm/vllm-openai:v0.31.0"
    assert data["container"] == {
        "name": "mine",
        "gpus": "all",
        "ipc": "host",
        "ulimits": {"memlock": "-1"},
        "ports": ["8100:8000"],
        "env": {"VLLM_X": "1"},
    }
    assert data["server_key"] == {"env": "SPARK_KEY"}
    assert data["vllm"] == {"enforce-eager": True, "served-model-name": "acme/Tiny-8B"}
    shown = imported.text + str(imported.report)
    assert "sk-0123" not in shown and "hf_0123" not in shown
    assert all(word in format_rows(imported, "dropped") for word in ("privileged", "network host", "--rm", "--runtime"))


@pytest.mark.parametrize(
    ("command", "entrypoint"),
    [
        ("nvcr.io/nvidia/vllm:25.12-py3 vllm serve acme/Tiny", ["vllm", "serve"]),
        ("nvcr.io/nvidia/vllm:25.12-py3 /opt/init.sh vllm serve acme/Tiny", ["/opt/init.sh", "vllm", "serve"]),
        ("nvcr.io/nvidia/vllm:25.12-py3 bash -c 'exec vllm serve acme/Tiny'", ["vllm", "serve"]),
        ("acme/vllm:1 python3 -m vllm.entrypoints.openai.api_server --model acme/Tiny", ["vllm", "serve"]),
        ("acme/vllm:1 serve acme/Tiny", ["vllm", "serve"]),
        ("acme/vllm:1 --model acme/Tiny", None),
        ("vllm/vllm-openai:v0.32.0 --model acme/Tiny", None),
        ("--entrypoint vllm vllm/vllm-openai:v0.32.0 serve acme/Tiny", None),
        ("acme/llama:1 /opt/bin/llama-server -hf acme/Tiny:Q8_0", ["/opt/bin/llama-server"]),
        ("acme/sglang:1 python3 -m sglang.launch_server --model-path acme/Tiny", None),
    ],
)
def test_entrypoint_from_the_command(command: str, entrypoint: list[str] | None) -> None:
    """It is kept if another image may start another program."""
    data = import_data(f"docker run --gpus all {command}", name="t1")
    assert data["container"].get("entrypoint") == entrypoint
    assert data["model"]["id"] == "acme/Tiny"


@pytest.mark.parametrize("options", ["-itdp 9000:8000", "-d -it -p9000:8000", "-ti --publish=9000:8000/tcp"])
def test_combined_short_options(options: str) -> None:
    data = import_data(f"docker run {options} vllm/vllm-openai:v0.32.0 --model acme/Tiny")
    assert data["container"]["ports"] == ["9000:8000"]


def test_model_folder_of_the_host() -> None:
    line = "docker run -p 9000:8000 -v /srv/models:/models vllm/vllm-openai:v0.32.0 --model /models/tiny --served-model-name tiny"
    assert list_questions(line) == ["model"]
    data = import_data(line, name="t1", model="acme/Tiny")
    assert data["model"] == {"id": "acme/Tiny", "dir": "/srv/models/tiny", "mount": "/models/tiny"}
    assert data["container"]["ports"] == ["9000:8000"]


def test_pooling_runner_becomes_the_task_embed() -> None:
    text = SPARKRUN_2.replace("--load-format fastsafetensors", "--runner pooling").replace("Tiny-30B-FP8", "Tiny-Embed")
    assert import_data(text)["task"] == "embed"


def test_warnings_about_access_to_the_host() -> None:
    line = (
        "docker run --gpus all -v /:/host:ro -v /etc:/etc:ro -v ~/.ssh:/keys -v /models:/m --device /dev/mem --cap-add SYS_ADMIN "
        "-e LD_PRELOAD=/host/x.so vllm/vllm-openai:v0.32.0 --model a/b --trust-remote-code"
    )
    warnings = format_rows(import_recipe(line), "warning")
    assert "volumes: /:/host:ro: gives the container every file of the host" in warnings
    for option in ("volumes: /etc:/etc:ro", "volumes: ~/.ssh:/keys", "devices: /dev/mem", "cap_add: SYS_ADMIN"):
        assert f"{option}: " in warnings
    assert "env: LD_PRELOAD: loads a library" in warnings and "--trust-remote-code: runs Python code" in warnings
    assert "Docker socket" not in warnings and "/models" not in warnings
    assert format_rows(import_recipe(COMPOSE), "warning") == ""


@pytest.mark.parametrize(
    ("line", "flags", "ports"),
    [
        ("vllm/vllm-openai:v0.32.0 acme/Tiny --max-model-len 8192 -p 8001:8000", {"max-model-len": 8192}, "8001:8000"),
        ("vllm/vllm-openai:v0.32.0 --model acme/Tiny --enable-prefix-caching -v /srv/hf:/root/.cache/huggingface --rm",
         {"enable-prefix-caching": True}, "8000:8000"),
        ("lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server --model-path acme/Tiny --publish=30001:30000", {}, "30001:30000"),
    ],
)  # fmt: skip
def test_docker_options_after_the_image(line: str, flags: dict[str, object], ports: str) -> None:
    imported = import_recipe(f"docker run --gpus all {line}")
    data = yaml.safe_load(imported.text)
    section = data.get("vllm") or data.get("sglang")
    assert section == {**flags, "served-model-name": "acme/Tiny"}
    assert data["container"]["ports"] == [ports]
    assert "an option after the image" in format_rows(imported, "translated")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("acme/Tiny", "acme/Tiny"),
        ("--model acme/Tiny --served-model-name chat", "chat"),
        ("--model acme/Tiny --served-model-name chat gpt-4o", ["chat", "gpt-4o"]),
        ("--model /models/tiny --seed 1", None),
    ],
)
def test_served_model_name(line: str, names: object) -> None:
    text = f"docker run --gpus all -v /srv/models:/models vllm/vllm-openai:v0.32.0 {line}"
    answers = {"model": "acme/Tiny"} if "/models/tiny" in line else {}
    data = import_data(text, **answers)
    assert data["vllm"].get("served-model-name") == names
    if names is None:  # clients use the folder's path
        assert data["model"]["mount"] == "/models/tiny"


def test_compose_command_item_with_two_words() -> None:
    text = """
services:
  llm:
    image: vllm/vllm-openai:v0.32.0
    command: ["vllm serve acme/Tiny", "--max-model-len 4096", '--hf-overrides={"a": 1}']
    ulimits: {memlock: {soft: -1, hard: -1}}
    cap_add: [IPC_LOCK]
"""
    imported = import_recipe(text)
    data = yaml.safe_load(imported.text)
    assert data["model"]["id"] == "acme/Tiny" and data["vllm"]["max-model-len"] == 4096
    assert data["vllm"]["hf-overrides"] == {"a": 1}
    rows = format_rows(imported)
    assert "one item with several words" in rows
    assert not any(sign in rows for sign in ("['", "('", "{'", "True", "None")), rows
