"""A deploy of another real version and back, with the flags that changed between them."""

from typing import Any

import pytest

from tests.real_engine.container.desk import Project

pytestmark = pytest.mark.engine

#: a flag of 0.32.0 that the older versions do not have
NEWER: dict[str, Any] = {"max_num_queued_reqs": 64}
#: flags of older versions that 0.32.0 does not have
OLDER: dict[str, dict[str, Any]] = {
    "0.19.1": {"calculate_kv_scales": True},
    "0.28.0": {"enable_bf16x3_router_gemm": False},
}


@pytest.fixture
def other(project: Project) -> str:
    """Return the older installed version."""
    versions = [version for version in project.shelf.by_version if version in OLDER]
    if not versions:
        pytest.skip(f"none of {', '.join(OLDER)} is installed: `make test-engine VERSION={next(iter(OLDER))}`")
    return versions[0]


def flag_name(flags: dict[str, Any]) -> str:
    return next(iter(flags)).replace("_", "-")


def test_an_older_version_is_deployed_and_rolled_back(project: Project, other: str) -> None:
    """A flag that only one version has is refused for the other one, while the server keeps running."""
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
