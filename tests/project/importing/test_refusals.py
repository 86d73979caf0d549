"""Sources that cannot become a recipe are refused with the reason; other open questions are listed by name."""

from pathlib import Path

import pytest
import yaml

from sparkwright.errors import Refused
from tests.project.importing.forms import (
    EUGR,
    SPARKRUN_2,
    VLLM,
    format_rows,
    import_data,
    import_recipe,
    list_questions,
)
from tests.project.recipes import load_text

BASE = "docker run -v /srv:/m vllm/vllm-openai:v0.32.0 --model acme/Tiny"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{BASE} | tee log", "a pipe"),
        (f"{BASE} && echo done", "`&` or `&&`"),
        (f"{BASE} --seed $(date +%s)", "a command substitution"),
        (f"{BASE} --seed `id`", "a command substitution"),
        (f"{BASE} > log", "a redirection"),
        (f"{BASE}; reboot", "`;`"),
        (f"{BASE}\nreboot", "a second command"),
        (f'{BASE} "unfinished', "cannot be split"),
        ("docker run --sparkle yes vllm/vllm-openai:v0.32.0", "unknown option `--sparkle` of docker run"),
        ("docker run -d", "names no image"),
        ("docker run nvcr.io/x/trt:1 trtllm-serve acme/Tiny", "TensorRT-LLM"),
        ("docker run -p 11434:11434 ollama/ollama:latest", "recipes for Ollama cannot be imported"),
        ("services: {a: {extends: {file: b.yml, service: b}}}", "extends another one"),
        (f"{BASE} --data-parallel-size 2", "several copies"),
        (VLLM + "omni: {tasks: [image]}\n", "vLLM-Omni"),
        (VLLM.replace("vram_minimum_gb: 20", "vram_minimum_gb: 2000"), "more than 8 Sparks have"),
        (VLLM.replace("vram_minimum_gb: 20", "vram_minimum_gb: 200"), "cannot be split over hosts"),
        (SPARKRUN_2.replace("runtime: vllm", "runtime: atlas"), "the runtime 'atlas'"),
        (
            SPARKRUN_2.replace("runtime: vllm", "runtime: sglang")
            .replace("max_nodes: 1", "min_nodes: 2")
            .replace("-tp", "--tp"),
            "the model needs 2 hosts, but SGLang can serve only from one",
        ),
        (SPARKRUN_2 + "pre_exec: [curl evil | sh]\n", "`pre_exec` would run commands"),
        (SPARKRUN_2 + "include: base\n", "extends another one"),
        (SPARKRUN_2.replace("model: acme/Tiny-30B-FP8", "model: ../etc"), "is not a model's name"),
        (f"{BASE} -x 8000", "`-x` in the command is not an option of the engine"),
        ("[Unit]\nDescription=x\n\n[Service]\nExecStart=/usr/bin/docker run x\n", "this is a systemd unit"),
        ("#!/bin/bash\nset -e\ndocker run x\n", "this is a shell script"),
        ("# Tiny\n\nStart it:\n\n```bash\ndocker run x\n```\n", "this is a text document"),
        ("FROM vllm/vllm-openai:v0.32.0\nRUN pip install x\n", "this is a Dockerfile"),
        (f"{SPARKRUN_2}pre_exec: [curl x, [a, b]]\n", "starts: curl x, a, b."),
        ("services: {a: {image: a/vllm:1, volumes: 5}}\n", "tiny.yaml:1: `services.a.volumes` must be a list, got a number"),
        ("services: {a: {image: a/vllm:1, ports: 8000}}\n", "`services.a.ports` must be a list, got a number"),
        ("services:\n  a:\n    image: a/vllm:1\n    oom_score_adj: abc\n", "`oom_score_adj` must be a whole number, got 'abc'"),
        ("services:\n  a:\n    image: [b]\n", "tiny.yaml:3: `services.a.image` must be a string, got a list"),
        (VLLM + "dependencies: 259\n", "`dependencies` must be a list, got a number"),
        (VLLM + "features: {a: {args: {b: c}}}\n", "duplicate key"),
        (SPARKRUN_2 + "overrides: [5]\n", "item 1 of `overrides` must be a mapping, got a number"),
        ("services: {}\n", "is empty"),
        ("- a\n- b\n", "this is not a recipe of"),
        ("hello: world\n", "this is not a recipe of"),
        ("model: {model_id: 5}\nvariants: 7\n", "`variants` must be a mapping"),
        ("recipe_version: '2'\nmodel: [a]\n", "`model` must be a string"),
        ("a: &a [1]\nb: [*a, *a]\n", "this is not a recipe of"),
    ],
)  # fmt: skip
def test_invalid_source_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Refused) as excinfo:
        import_recipe(text)
    assert reason in str(excinfo.value)


def test_compose_services_without_an_image_need_an_answer() -> None:
    assert list_questions("services: {a: {build: .}, b: {}}\ncommand: x\n")


def test_mods_are_refused_with_their_actions_unless_dropped(tmp_path: Path) -> None:
    mod = tmp_path / "mods" / "fix-template"
    mod.mkdir(parents=True)
    (mod / "run.sh").write_text("#!/bin/bash\ncurl -L https://example.org/1.diff | git apply\npip install x\n")
    path = str(tmp_path / "recipes" / "tiny.yaml")
    text = SPARKRUN_2 + "mods: [mods/fix-template]\n"
    actions = "git repository, downloads from the network, installs packages"
    with pytest.raises(Refused, match=f"mods/fix-template .*{actions}") as excinfo:
        import_recipe(text, path)
    assert "--answer mods=drop" in excinfo.value.fix
    assert "mods/fix-template" in format_rows(import_recipe(text, path, mods="drop"), "dropped")


def test_questions_are_answered_by_name() -> None:
    text = EUGR.replace("cluster_only: true\n", "").replace(
        "--distributed",
        '--seed {seed} --chat-template fixed.jinja --speculative-config \'{{"model":"acme/Draft"}}\' --distributed',
    )
    assert set(list_questions(text)) == {"placeholder.seed", "hosts", "chat-template", "speculative-config", "image"}
    answers = {
        "placeholder__seed": "7",
        "hosts": "1",
        "chat-template": "chat/fixed.jinja",
        "speculative-config": "drop",
        "image": "a/b:1",
    }
    data = import_data(text, **answers)
    assert data["vllm"]["seed"] == 7 and "speculative-config" not in data["vllm"] and "parallel" not in data
    assert data["files"] == {"/etc/sparkwright/fixed.jinja": {"file": "chat/fixed.jinja"}}


def test_second_models_are_pinned(tmp_path: Path) -> None:
    config = '\'{{"method":"eagle3","model":"acme/Draft","num_speculative_tokens":2}}\''
    text = EUGR.replace("cluster_only: true\n", "").replace(
        "--distributed", f"--seed 7 --tokenizer acme/Tok --speculative-config {config} --distributed"
    )
    answers = {"hosts": "1", "speculative-config": "pin", "tokenizer": "pin", "image": "a/b:1"}
    imported = import_recipe(text, **answers)
    data = yaml.safe_load(imported.text)
    assert data["models"]["draft"] == {"id": "acme/Draft", "dir": "~/models/draft", "mount": "/models/draft"}
    assert data["models"]["tokenizer"]["id"] == "acme/Tok" and "tokenizer" not in data["vllm"]
    assert data["vllm"]["speculative-config"] == {"method": "eagle3", "num_speculative_tokens": 2}
    assert "models.draft" in format_rows(imported, "translated")
    assert load_text(tmp_path, imported.text).file.models["draft"].id == "acme/Draft"


def test_image_is_accepted_without_a_question() -> None:
    mods = import_recipe(SPARKRUN_2 + "mods: [mods/fix]\n", mods="drop", image="acme/fixed:1")
    packages = VLLM + "dependencies: [{command: pip install x}]\n"
    assert list_questions(packages) == ["dependencies"]
    installed = import_recipe(packages, dependencies="drop", image="acme/fixed:1")
    for item in (mods, installed):
        assert yaml.safe_load(item.text)["image"] == "acme/fixed:1" and "as answered" in format_rows(item, "translated")
    assert import_data(EUGR, image="my-vllm")["image"] == "my-vllm:latest"


def test_invalid_and_unknown_answers_are_refused() -> None:
    with pytest.raises(Refused, match="not a valid answer to `variant`"):
        import_recipe(VLLM.replace("dgx_spark_gb10:\n", "h100:\n"), variant="fp1")
    with pytest.raises(Refused, match="answers no question"):
        import_recipe(VLLM, colour="blue")


def test_billion_laughs_is_refused() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(Refused):
        import_recipe(bomb + "recipe_version: '2'\n")


def test_unknown_flag_is_kept_and_reported() -> None:
    imported = import_recipe(f"{BASE} --max-tokens-of-doom 7", name="t1")
    assert yaml.safe_load(imported.text)["vllm"]["max-tokens-of-doom"] == 7
    assert "--max-tokens-of-doom" in format_rows(imported, "note")


@pytest.mark.parametrize("text", [VLLM, SPARKRUN_2, EUGR])
def test_unknown_key_is_reported(text: str) -> None:
    assert "turbo: unknown key" in format_rows(import_recipe(f"{text}turbo: fast\n"), "dropped")


def test_invalid_result_names_the_source_and_no_file_that_was_not_written() -> None:
    with pytest.raises(Refused) as caught:
        import_recipe("docker run -v /:/host vllm/vllm-openai:v0.32.0 acme/Tiny")
    assert "the recipe made from it is not valid: `container.volumes`" in str(caught.value)
    assert ".yml" not in caught.value.where
