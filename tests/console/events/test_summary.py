"""The panel at the end of a run names the running server."""

from typing import Any

import pytest

from sparkwright.console.events.summary import ServerSummary, Summary


@pytest.mark.parametrize(("worker", "panel"), [(0, True), (1, False), (2, False)])
def test_cluster_has_a_panel_if_all_its_members_succeeded(worker: int, panel: bool) -> None:
    printed: list[str] = []
    summary = Summary(lambda style, text: printed.append(text))
    served = ServerSummary("one", "r", "i", "m", "", "name", "http://one:8000", cluster="pair", members=("one", "two"))
    summary.set_server(served)
    proof: dict[str, Any] = {"event": "task_finished", "host": "one", "status": "ok", "module": "verify_health"}
    summary.on({**proof, "msg": "generates: 8 tokens in 0.21 s", "data": {}})
    summary.on({"event": "recap", "host": "one", "exit": 0})
    summary.on({"event": "recap", "host": "two", "exit": worker})
    summary.close()
    assert bool(printed) is panel
