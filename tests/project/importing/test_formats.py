"""Each format becomes the recipe that a person would have written, and the report lists the outcome for the rest."""

import pytest
import yaml

from tests.project.importing.forms import COMPOSE, EUGR, SPARKRUN_2, VLLM, format_rows, import_recipe


def test_vllms_recipe_is_taken_with_what_its_author_changed_for_a_spark() -> None:
    value = import_recipe(VLLM)
    data = yaml.safe_load(value.text)
    assert value.name == "tiny-30b-nvfp4"
    assert data["model"]["id"] == "acme/Tiny-30B-NVFP4"
    assert data["image"] == "vllm/vllm-openai:v0.32.0"
    assert data["vllm"] == {
        "max-num-seqs": 8,  # the last one counts
        "kv-cache-dtype": "fp8",
        "gpu-memory-utilization": 0.8,
        "default-chat-template-kwargs": {"enable_thinking": True},
        "enable-auto-tool-choice": True,
        "tool-call-parser": "hermes",
        "served-model-name": "acme/Tiny-30B-NVFP4",
    }
    assert data["container"]["env"] == {"VLLM_A": "1", "VLLM_B": "2", "VLLM_C": "3"}
    assert "spec_decoding" in format_rows(value, "dropped")
    assert "0.24.0 or newer" in format_rows(value, "note") and "expect.probes: [tool_call]" in format_rows(
        value, "note"
    )


def test_the_checkpoint_is_asked_for_where_several_fit_and_none_is_for_a_spark() -> None:
    text = VLLM.replace("dgx_spark_gb10:\n", "h100:\n")
    options = import_recipe(text).report.questions
    assert [(item.key, item.choices) for item in options] == [("variant", ("default", "nvfp4"))]
    assert yaml.safe_load(import_recipe(text, variant="default").text)["model"]["id"] == "acme/Tiny-30B"


def test_sparkruns_recipe_has_its_placeholders_filled_and_its_port_published() -> None:
    value = import_recipe(SPARKRUN_2, "tiny-fp8.yaml")
    data = yaml.safe_load(value.text)
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
    assert all(word in format_rows(value, "dropped") for word in ("privileged", "network host"))


def test_flags_are_made_of_defaults_where_there_is_no_command() -> None:
    text = """
recipe_version: "2"
model: acme/Tiny
runtime: sglang
container: lmsysorg/sglang:v0.5.23
solo_only: true
defaults: {gpu_memory_utilization: 0.8, max_model_len: 4096, max_num_seqs: 4, tool_call_parser: qwen}
"""
    data = yaml.safe_load(import_recipe(text).text)
    assert data["sglang"] == {
        "mem-fraction-static": 0.8,
        "context-length": 4096,
        "max-running-requests": 4,
        "tool-call-parser": "qwen",
        "served-model-name": "acme/Tiny",
    }


def test_sparkruns_overrides_are_taken_where_they_hold_and_asked_about_where_nobody_can_tell() -> None:
    text = f"""{SPARKRUN_2}overrides:
      - {{when: {{arch: arm64, nodes: 1}}, defaults: {{max_model_len: 8192}}, env: {{VLLM_A: 2}}}}
      - {{when: {{arch: x86_64}}, container: ghcr.io/acme/other:1}}
      - {{when: {{platform: quiet}}, defaults: {{gpu_memory_utilization: 0.5}}}}
    """
    assert [question.key for question in import_recipe(text).report.questions] == ["override-3"]
    left, put = (yaml.safe_load(import_recipe(text, override_3=answer).text) for answer in ("drop", "take"))
    assert left["vllm"]["max-model-len"] == 8192 and left["container"]["env"]["VLLM_A"] == "2"
    assert left["image"] == "ghcr.io/acme/vllm:latest"
    assert [item["vllm"]["gpu-memory-utilization"] for item in (left, put)] == [0.8, 0.5]
    dropped = format_rows(import_recipe(text, override_3="drop"), "dropped")
    assert "override 2: its condition is false (arch: x86_64)" in dropped and "override 3" in dropped


def test_of_several_images_one_is_asked_for() -> None:
    text = SPARKRUN_2.replace("container: ghcr.io/acme/vllm:latest", "containers: {small: acme/s:1, large: acme/l:1}")
    assert [question.key for question in import_recipe(text).report.questions] == ["container"]
    assert yaml.safe_load(import_recipe(text, container="large").text)["image"] == "acme/l:1"


def test_eugrs_recipe_for_several_hosts_becomes_a_cluster() -> None:
    value = import_recipe(EUGR, image="vllm/vllm-openai:v0.32.0")
    data = yaml.safe_load(value.text)
    assert data["parallel"] == {"tensor": 2}
    assert data["vllm"] == {
        "port": 8000,
        "served-model-name": "acme/Tiny-30B-FP8",
        "gpu-memory-utilization": 0.8,
        "compilation-config": {"cudagraph_mode": "FULL"},
    }
    assert "ports" not in data["container"] and "publish" not in data
    assert "--distributed-executor-backend ray" in format_rows(value, "dropped")
    assert value.hosts == 2 and "network host" not in format_rows(value, "dropped")  # a cluster's members are on it


def test_a_gguf_of_the_hub_becomes_a_file_of_the_model() -> None:
    text = """
model: acme/Tiny-GGUF:Q8_0
runtime: llama-cpp
max_nodes: 1
container: ghcr.io/acme/llama:b1
defaults: {port: 8000, ctx_size: 4096}
command: llama-server -hf {model} --port {port} --ctx-size {ctx_size} --flash-attn on --no-mmap -ngl 99
"""
    data = yaml.safe_load(import_recipe(text).text)
    assert data["engine"] == "llama_cpp"
    assert data["model"] == {
        "id": "acme/Tiny-GGUF",
        "file": "*Q8_0*.gguf",
        "dir": "~/models/tiny-gguf",
        "mount": "/models/tiny-gguf",
    }
    assert data["llama_cpp"]["ctx-size"] == 4096 and data["container"]["ports"] == ["8000:8080"]


def test_a_compose_file_gives_its_one_service() -> None:
    value = import_recipe(COMPOSE, service="llm")
    data = yaml.safe_load(value.text)
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
    assert "HF_TOKEN" in format_rows(value, "secret")
    assert all(word in format_rows(value, "dropped") for word in ("healthcheck", "privileged", "./data", "service web"))


def test_a_service_and_the_line_that_starts_the_same_container_give_the_same_recipe() -> None:
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
    line = (
        "docker run --name mine --entrypoint vllm -e A=1 -p 9000:8001 -v /srv/m:/m:ro --init --memory 100gb --oom-score-adj=-500 "
        "--cap-add SYS_NICE --device /dev/infiniband:/dev/infiniband --add-host a:10.0.0.1 --ulimit memlock=-1 --ulimit nofile=1024:2048 "
        "--label team=lab --label bare= --cpus 4 --sysctl net.core.somaxconn=1024 acme/vllm:1 serve acme/Tiny --port 8001"
    )
    of_service, of_line = (yaml.safe_load(import_recipe(text, name="t1").text) for text in (service, line))
    assert of_service == of_line
    assert of_service["container"]["labels"] == {"team": "lab", "bare": ""} and of_service["container"]["init"] is True
    assert of_service["container"]["ulimits"] == {"memlock": "-1", "nofile": "1024:2048"}


def test_of_several_services_the_one_that_names_an_engine_is_taken() -> None:
    data = yaml.safe_load(import_recipe(COMPOSE).text)
    assert data["engine"] == "sglang" and data["container"]["name"] == "llm"
    both = COMPOSE.replace("nginx:1", "vllm/vllm-openai:v0.32.0")
    assert "service" in {question.key for question in import_recipe(both).report.questions}


def test_a_compose_files_common_part_is_brought_in_and_no_secret_is_asked_for() -> None:
    value = import_recipe(
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
    assert value.report.questions == []
    data = yaml.safe_load(value.text)
    assert data["image"] == "vllm/vllm-openai:v0.32.0" and data["container"]["ipc"] == "host"
    assert data["container"]["env"] == {"B": "2"} and data["vllm"] == {"seed": 7, "served-model-name": "acme/Tiny"}
    assert data["server_key"] == {"env": "SPARK_KEY"}
    assert "HF_TOKEN" in format_rows(value, "secret") and "hf_0123" not in value.text + str(value.report)
    assert "deploy: replicas" in format_rows(value, "dropped") and "deploy: devices" in format_rows(value, "translated")


def test_a_docker_run_line_is_read_by_the_options_that_recipes_know() -> None:
    line = (
        """docker run -d --rm --runtime nvidia --gpus all --ipc=host --network host --privileged --ulimit memlock=-1 \\
  -e HF_TOKEN=hf_0123456789abcdefghij -e VLLM_X=1 -v ~/.cache/huggingface:/root/.cache/huggingface --name mine \\
  vllm/vllm-openai:v0.31.0@sha256:"""
        + "a" * 64
        + """ --model acme/Tiny-8B --port 8100 --api-key sk-0123456789abcdefghij -tp 1 --enforce-eager"""
    )
    value = import_recipe(line)
    data = yaml.safe_load(value.text)
    assert value.name == "mine" and value.image_digest == "sha256:" + "a" * 64
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
    assert "sk-0123" not in value.text + str(value.report) and "hf_0123" not in value.text + str(value.report)
    assert all(word in format_rows(value, "dropped") for word in ("privileged", "network host", "--rm", "--runtime"))


@pytest.mark.parametrize(
    ("words", "program"),
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
def test_the_program_that_a_command_names_is_kept_where_another_image_may_start_something_else(
    words: str, program: list[str] | None
) -> None:
    data = yaml.safe_load(import_recipe(f"docker run --gpus all {words}", name="t1").text)
    assert data["container"].get("entrypoint") == program
    assert data["model"]["id"] == "acme/Tiny"


@pytest.mark.parametrize("bundle", ["-itdp 9000:8000", "-d -it -p9000:8000", "-ti --publish=9000:8000/tcp"])
def test_short_options_may_stand_together(bundle: str) -> None:
    data = yaml.safe_load(import_recipe(f"docker run {bundle} vllm/vllm-openai:v0.32.0 --model acme/Tiny").text)
    assert data["container"]["ports"] == ["9000:8000"]


def test_a_model_in_a_folder_of_the_host_is_asked_for_and_its_folder_kept() -> None:
    line = "docker run -p 9000:8000 -v /srv/models:/models vllm/vllm-openai:v0.32.0 --model /models/tiny --served-model-name tiny"
    assert [question.key for question in import_recipe(line).report.questions] == ["model"]
    data = yaml.safe_load(import_recipe(line, name="t1", model="acme/Tiny").text)
    assert data["model"] == {"id": "acme/Tiny", "dir": "/srv/models/tiny", "mount": "/models/tiny"}
    assert data["container"]["ports"] == ["9000:8000"]


def test_a_server_of_vectors_is_told_by_its_flags() -> None:
    text = SPARKRUN_2.replace("--load-format fastsafetensors", "--runner pooling").replace("Tiny-30B-FP8", "Tiny-Embed")
    assert yaml.safe_load(import_recipe(text).text)["task"] == "embed"


def test_what_a_recipe_gives_away_is_warned_of() -> None:
    line = (
        "docker run --gpus all -v /:/host:ro -v /etc:/etc:ro -v ~/.ssh:/keys -v /models:/m --device /dev/mem --cap-add SYS_ADMIN "
        "-e LD_PRELOAD=/host/x.so vllm/vllm-openai:v0.32.0 --model a/b --trust-remote-code"
    )
    warned = format_rows(import_recipe(line), "warning")
    assert "volumes: /:/host:ro: gives the container every file of the host" in warned
    for value in ("volumes: /etc:/etc:ro", "volumes: ~/.ssh:/keys", "devices: /dev/mem", "cap_add: SYS_ADMIN"):
        assert f"{value}: " in warned
    assert "env: LD_PRELOAD: loads a library" in warned and "--trust-remote-code: runs Python code" in warned
    assert "Docker socket" not in warned and "/models" not in warned
    assert format_rows(import_recipe(COMPOSE), "warning") == ""


@pytest.mark.parametrize(
    ("line", "flags", "ports"),
    [
        ("vllm/vllm-openai:v0.32.0 acme/Tiny --max-model-len 8192 -p 8001:8000", {"max-model-len": 8192}, "8001:8000"),
        (
            "vllm/vllm-openai:v0.32.0 --model acme/Tiny --enable-prefix-caching -v /srv/hf:/root/.cache/huggingface --rm",
            {"enable-prefix-caching": True},
            "8000:8000",
        ),
        (
            "lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server --model-path acme/Tiny --publish=30001:30000",
            {},
            "30001:30000",
        ),
    ],
)
def test_dockers_options_behind_the_image_are_taken_as_dockers(line: str, flags: dict[str, object], ports: str) -> None:
    value = import_recipe(f"docker run --gpus all {line}")
    data = yaml.safe_load(value.text)
    section = data.get("vllm") or data.get("sglang")
    assert section == {**flags, "served-model-name": "acme/Tiny"}
    assert data["container"]["ports"] == [ports]
    assert "an option after the image" in format_rows(value, "translated")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("acme/Tiny", "acme/Tiny"),
        ("--model acme/Tiny --served-model-name chat", "chat"),
        ("--model acme/Tiny --served-model-name chat gpt-4o", ["chat", "gpt-4o"]),
        ("--model /models/tiny --seed 1", None),
    ],
)
def test_the_name_that_clients_rely_on_is_kept(line: str, names: object) -> None:
    text = f"docker run --gpus all -v /srv/models:/models vllm/vllm-openai:v0.32.0 {line}"
    answers = {"model": "acme/Tiny"} if "/models/tiny" in line else {}
    data = yaml.safe_load(import_recipe(text, **answers).text)
    assert data["vllm"].get("served-model-name") == names
    if names is None:  # as before: the folder
        assert data["model"]["mount"] == "/models/tiny"


def test_an_item_with_two_words_is_read_as_two() -> None:
    text = """
services:
  llm:
    image: vllm/vllm-openai:v0.32.0
    command: ["vllm serve acme/Tiny", "--max-model-len 4096", '--hf-overrides={"a": 1}']
    ulimits: {memlock: {soft: -1, hard: -1}}
    cap_add: [IPC_LOCK]
"""
    value = import_recipe(text)
    data = yaml.safe_load(value.text)
    assert data["model"]["id"] == "acme/Tiny" and data["vllm"]["max-model-len"] == 4096
    assert data["vllm"]["hf-overrides"] == {"a": 1}
    result = "\n".join(f"{row.what}: {row.why}" for row in value.report.rows)
    assert "one item with several words" in result
    assert not any(sign in result for sign in ("['", "('", "{'", "True", "None")), result
