"""From one real version to another and back, with the flags that changed between them."""

from typing import Any

import pytest

from tests.real_engine.container.desk import Project

pytestmark = pytest.mark.engine

#: of 0.32.0, and of none of those below
NEWER: dict[str, Any] = {"max_num_queued_reqs": 64}
#: what these list and 0.32.0 does not
OLDER: dict[str, dict[str, Any]] = {
    "0.19.1": {"calculate_kv_scales": True},
    "0.28.0": {"enable_bf16x3_router_gemm": False},
}


@pytest.fixture
def other(project: Project) -> str:
    """The version beside the usual one."""
    versions_found = [item for item in project.shelf.by_version if item in OLDER]
    if not versions_found:
        pytest.skip(
            f"none of {', '.join(OLDER)} is installed: `make test-engine VERSION={next(iter(OLDER))}` does that"
        )
    return versions_found[0]


def flag_name(flags: dict[str, Any]) -> str:
    return next(iter(flags)).replace("_", "-")


def test_to_an_older_version_and_back(project: Project, other: str) -> None:
    """A flag that only one of them has is refused by the other, while the server goes on."""
    project.deploy_proved(**NEWER)
    before = project.container()["Image"]
    why = project.expect_refusal(version=other, **NEWER)
    assert flag_name(NEWER) in why and f"vLLM {other}" in why
    older = project.deploy_proved(version=other, **OLDER[other])
    assert project.settings()["version"] == other
    assert older.task("Check that it generates")["data"]["verdict"] == "ready"
    assert project.container()["Image"] != before
    why = project.expect_refusal(**OLDER[other])
    assert flag_name(OLDER[other]) in why and f"vLLM {project.shelf.usual}" in why
    result = project.run("rollback", "--host", "here", "--json")
    assert result.proved, result.out[-3000:]
    assert (project.settings()["version"], project.container()["Image"]) == (project.shelf.usual, before)
    project.write_recipe(**NEWER)
    assert project.deploy().recap["changed"] == 0
