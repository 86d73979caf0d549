"""From one real version to another and back, with the flags that changed between them."""

from typing import Any

import pytest

from tests.real_engine.container.desk import Desk

pytestmark = pytest.mark.engine

#: of 0.32.0, and of none of those below
NEWER: dict[str, Any] = {"max_num_queued_reqs": 64}
#: what these list and 0.32.0 does not
OLDER: dict[str, dict[str, Any]] = {
    "0.19.1": {"calculate_kv_scales": True},
    "0.28.0": {"enable_bf16x3_router_gemm": False},
}


@pytest.fixture
def other(desk: Desk) -> str:
    """The version beside the usual one."""
    found = [item for item in desk.shelf.by_version if item in OLDER]
    if not found:
        pytest.skip(
            f"none of {', '.join(OLDER)} is installed: `make test-engine VERSION={next(iter(OLDER))}` does that"
        )
    return found[0]


def option(flags: dict[str, Any]) -> str:
    return next(iter(flags)).replace("_", "-")


def test_to_an_older_version_and_back(desk: Desk, other: str) -> None:
    """A flag that only one of them has is refused by the other, while the server goes on."""
    desk.deployed(**NEWER)
    before = desk.container()["Image"]
    why = desk.refused(version=other, **NEWER)
    assert option(NEWER) in why and f"vLLM {other}" in why
    older = desk.deployed(version=other, **OLDER[other])
    assert desk.settings()["version"] == other
    assert older.task("Check that it generates")["data"]["verdict"] == "ready"
    assert desk.container()["Image"] != before
    why = desk.refused(**OLDER[other])
    assert option(OLDER[other]) in why and f"vLLM {desk.shelf.usual}" in why
    result = desk.run("rollback", "--host", "here", "--json")
    assert result.proved, result.out[-3000:]
    assert (desk.settings()["version"], desk.container()["Image"]) == (desk.shelf.usual, before)
    desk.recipe_of(**NEWER)
    assert desk.deploy().recap["changed"] == 0
