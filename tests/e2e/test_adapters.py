"""A recipe with LoRA adapters, from their pins to their removal: each is a model of the server, and answers by its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.conftest import Desk, fresh_desk

SQL, LAW = "sandbox-org/qwen3.5-35b-sql-lora", "sandbox-org/qwen3.5-35b-law-lora"
ADAPTERS = f"adapters:\n  - {{id: {SQL}, name: sql}}\n  - {{id: {LAW}, name: law}}\n\ncontainer:\n"
RECIPE = "recipes/qwen3.5-35b.yml"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with fresh_desk() as desk:
        desk.edit(RECIPE, r"(?m)^container:.*\n", ADAPTERS)
        yield desk


def test_they_are_pinned_fetched_mounted_served_by_name_proved_kept_and_moved_on_with(desk: Desk) -> None:
    deployed = desk.deploy()
    assert deployed.code == 0, deployed.err + deployed.out
    lock = yaml.safe_load((desk.sandbox / "spark.lock").read_text())["models"]
    entry = lock[f"{SQL}@main:adapter"]
    assert [file["path"] for file in entry["files"]] == ["adapter_config.json", "adapter_model.safetensors"]
    assert entry["adapter"]["base"] == "Qwen/Qwen3.5-35B-A3B"
    assert (entry["adapter"]["rank"], entry["adapter"]["layers"]) == (16, 40)
    assert entry["adapter"]["sizes"] == {"o_proj": [4096, 2048], "q_proj": [2048, 4096]}
    (container,) = desk.docker().containers.list()
    words = container.attrs["Config"]["Cmd"]
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == ["sql=/adapters/sql", "law=/adapters/law"]
    assert "--enable-lora" in words
    assert any(
        bind.endswith("/models/adapters/sql:/adapters/sql:ro") for bind in container.attrs["HostConfig"]["Binds"]
    )
