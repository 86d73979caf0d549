"""The summary at the end of a deploy: the server's URL, and who can use it."""

from pathlib import Path

import pytest

from sparkwright.app.plans.recipes import summarize_planned_server
from sparkwright.console.events.summary import Summary
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("line", "url", "access"),
    [
        ("publish: loopback", "http://127.0.0.1:8000", "through ssh -L 8000:127.0.0.1:8000 spark1"),
        ("publish: lan", "http://10.0.0.7:8000", "anyone on the network can use this server"),
        ("server_key: {env: TEAM_KEY}", "http://10.0.0.7:8000", "TEAM_KEY"),
    ],
)
def test_summary_shows_the_url_and_who_can_use_the_server(tmp_path: Path, line: str, url: str, access: str) -> None:
    (tmp_path / "recipes").mkdir()
    shipped = (TOP / "recipes/qwen3.5-35b.yml").read_text().replace("publish: loopback\n", "")
    (tmp_path / "recipes/r.yml").write_text(shipped.replace("\nvllm:  ", f"\n{line}\nvllm:  "))
    host = Host("spark1", "10.0.0.7")
    server = summarize_planned_server(host, recipe.scope(host, "ops", recipe.load(tmp_path, "r"), {}))
    server.proved, server.done, server.new = True, True, True
    printed: list[str] = []
    panel = Summary(lambda style, text: printed.append(text))
    panel.set_server(server)
    panel.close()
    output = "\n".join(printed)
    assert url in output and access in output
    assert sum(words in output for words in ("through ssh", "anyone on the network", "TEAM_KEY")) == 1
