"""Settings for the clients of a group, with and without a gateway in front of its hosts."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.connect import connect_hosts
from sparkwright.app.queries import client_settings
from sparkwright.app.queries.client_settings import ClientOptions
from sparkwright.console.events.summary import ServerSummary

RECIPE = "qwen3-1.7b"
GATEWAY = {"host": "one", "port": 8080, "tls": "none", "key": {"env": "GATEWAY_KEY"}}


def summary_of(selection: Any, member: Any) -> ServerSummary:
    """Describe a running server without a connection to its host."""
    host = member.host.name
    url = f"http://{member.host.address}:8002"
    return ServerSummary(host, RECIPE, "image", "", "", served_name=RECIPE, url=url, max_model_len=16384)


@pytest.mark.parametrize(("gateway", "urls"), [(GATEWAY, 1), (None, 2)], ids=["gateway", "none"])
def test_settings_that_are_the_same_for_all_hosts_are_printed_once(
    gateway: dict[str, Any] | None,
    urls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "recipes").mkdir()
    shutil.copy(Path(__file__).parents[3] / f"recipes/{RECIPE}.yml", tmp_path / "recipes")
    recipe_file = tmp_path / f"recipes/{RECIPE}.yml"
    recipe_file.write_text(recipe_file.read_text().replace("publish: loopback", "publish: lan"))
    for number, name in enumerate(("one", "two"), 1):
        host = {"address": f"192.0.2.{number}", "user": "spark", "recipe": RECIPE}
        (tmp_path / f"hosts/{name}.yml").write_text(yaml.safe_dump(host))
    lab = {"hosts": ["one", "two"], **({"gateway": gateway} if gateway else {})}
    (tmp_path / "hosts/groups.yml").write_text(yaml.safe_dump({"lab": lab}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client_settings, "query_server", summary_of)
    codes = client_settings.print_settings(connect_hosts("lab"), json=False, options=ClientOptions("codex"))
    printed, errors = capsys.readouterr()
    assert (codes, printed.count("base_url = "), printed.count("an agent needs")) == ([0, 0], urls, urls), (
        printed + errors
    )
