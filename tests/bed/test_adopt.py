"""A server that a person started with `docker run` on a real Docker Engine becomes a recipe, and a deploy proves it where it stands."""

import pytest
import yaml

from tests.bed.conftest import INSTANT_SANDBOX, BedProject

pytestmark = pytest.mark.bed
MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"


def server_state(lab: BedProject) -> str:
    return lab.on("spark1", "docker inspect -f '{{.Id}} {{.State.StartedAt}} {{.State.Running}}' mine")


def test_running_server_is_adopted_without_a_restart(bare: BedProject) -> None:
    brought = bare.run("deploy", "--host", "spark1", "--tags", "image,model")
    assert brought.code == 0, brought.out + brought.err
    image = yaml.safe_load((bare.root / "recipes/bed.yml").read_text())["image"]
    line = (
        "docker run -d --name mine --restart always --gpus all --ipc=host --shm-size 1g -p 8000:8000 "
        f"-e {INSTANT_SANDBOX.replace(': ', '=')} -v ~/models/qwen35-35b-hf:/models/it {image} "
        "--model /models/it --served-model-name mine --max-model-len 32768 --gpu-memory-utilization 0.3"
    )
    assert bare.on("spark1", line)
    try:
        before = server_state(bare)
        answers = ("--answer", f"model={MODEL}", "--name", "adopted")
        imported = bare.run("recipe.import", "--from-host", "spark1", "--container", "mine", *answers)
        assert imported.code == 0 and "changed nothing on spark1" in imported.out, imported.out + imported.err
        recipe = yaml.safe_load((bare.root / "recipes/adopted.yml").read_text())
        assert recipe["model"]["dir"] == "~/models/qwen35-35b-hf" and recipe["container"]["restart"] == "always"
        (bare.root / "hosts/spark1.yml").write_text("address: spark1\nrecipe: adopted\n")
        deployed = bare.run("deploy", "--host", "spark1", "--json")
        assert deployed.code in (0, 4), deployed.out + deployed.err  # 4: this machine is too busy to measure
        compared = deployed.task("Compare running container with recipe")
        assert compared["status"] == "ok" and not compared["diff"], compared
        assert deployed.task("Check that it generates")["status"] == "ok"
        assert server_state(bare) == before and before.endswith("true")
    finally:
        bare.on("spark1", "docker rm -f mine")
