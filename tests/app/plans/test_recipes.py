"""The panel at the end of a deploy: from where the server can be reached, and how."""

from pathlib import Path

import pytest

from sparkwright.app.plans.recipes import planned_server
from sparkwright.console.events.summary import Summary
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "url", "message"),
    [
        ("publish: loopback", "http://127.0.0.1:8000", "through ssh -L 8000:127.0.0.1:8000 spark1"),
        ("publish: lan", "http://10.0.0.7:8000", "anyone on the network can use this server"),
        ("server_key: {env: TEAM_KEY}", "http://10.0.0.7:8000", "TEAM_KEY"),
    ],
)
def test_who_reaches_the_server_and_how(tmp_path: Path, text: str, url: str, message: str) -> None:
    (tmp_path / "recipes").mkdir()
    shipped = (TOP / "recipes/qwen3.5-35b.yml").read_text().replace("publish: loopback\n", "")
    (tmp_path / "recipes/r.yml").write_text(shipped.replace("\nvllm:  ", f"\n{text}\nvllm:  "))
    host = Host("spark1", "10.0.0.7")
    value = planned_server(host, recipe.scope(host, "ops", recipe.load(tmp_path, "r"), {}))
    lines: list[str] = []
    panel = Summary(lambda style, line: lines.append(line))
    value.proved, value.done, value.new = True, True, True
    panel.set_server(value)
    panel.close()
    output = "\n".join(lines)
    assert url in output and message in output
    assert sum(word in output for word in ("through ssh", "anyone on the network", "TEAM_KEY")) == 1
