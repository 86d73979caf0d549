"""The real vLLM with compilation in a container: its cache makes the next start warm, and a slow one is moved aside."""

import re
from pathlib import Path

import pytest

from sparkwright.host.containers import compile_caches
from tests.modules.context import RecordingContext
from tests.real_engine.container.desk import DENSE, Project

pytestmark = pytest.mark.engine

COMPILED = {"TORCHDYNAMO_DISABLE": "0"}
#: the beginning of a kernel's caller, in the format of Inductor
CALL = re.compile(r"^( *)def call\((?:self, )?args\):\n", re.M)
ASLEEP_S = 0.05


def slow_down_cache(home: Path) -> int:
    """Add a sleep to each compiled graph in the cache of the running server. Return the number of graphs."""
    count = 0
    for path in home.glob(".local/share/sparkwright/compile-caches/*/live/*/cache/**/*.py"):
        text = path.read_text()
        slow, replaced = CALL.subn(rf"\g<0>\1    import time; time.sleep({ASLEEP_S})\n", text)
        if replaced:
            path.write_text(slow)
        count += replaced
    return count


def test_a_compile_cache_that_makes_the_server_slow_is_moved_aside(project: Project) -> None:
    first = project.deploy_proved(model=DENSE, env=COMPILED, enforce_eager=False)
    measured = first.task("Measure throughput")
    assert measured["data"]["tok_per_s"], f"this machine is too busy to measure: {measured['msg']}"
    rate = float(measured["data"]["tok_per_s"])
    cold_s = float(first.task("Wait until it is ready")["data"]["ready_s"])
    project.write_recipe(model=DENSE, env=COMPILED, enforce_eager=False, expect={"tok_per_s": rate})

    warm = project.run("restart", "--host", "here", "--json")
    assert warm.proved, warm.out[-3000:]
    assert float(warm.task("Wait until it is ready")["data"]["ready_s"]) < cold_s

    home = Path(project.env["HOME"])
    assert slow_down_cache(home), "the engine has no compiled graphs in the mounted cache"
    context = RecordingContext(home)  # the slow cache counts as verified
    compile_caches.save_verified(context, context.docker().api.inspect_container(project.name))
    slow = project.run("restart", "--host", "here", "--json")
    assert slow.proved, slow.out[-3000:]
    moved = slow.task("Move the compile cache of a slow start aside")
    assert moved["status"] == "changed" and "expected by the recipe" in slow.out
    assert float(slow.task("Measure throughput after a cold start")["data"]["tok_per_s"]) > rate / 2
    rows = project.run("history", "--host", "here", "--json").events()
    assert "cache moved aside" in {row["what"] for row in rows}
    result = project.run("caches.list", "--host", "here")
    assert "aside" in result.out
