"""Settings for the clients of a group, with and without a gateway in front of its hosts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.connect import connect_hosts
from sparkwright.app.queries import client_settings
from sparkwright.app.queries.client_settings import ClientOptions
from sparkwright.console.events.summary import ServerSummary
from tests import published

RECIPE = "qwen3-1.7b"
GATEWAY = {"host": "one", "port": 8080, "tls": "none", "key": {"env": "GATEWAY_KEY"}}


def summary_of(selection: Any, member: Any) -> ServerSummary:
    """Describe a running server without a connection to its host."""
    host = member.host.name
    url = f"http://{member.host.address}:8002"
    return ServerSummary(host, RECIPE, "image", "", "", served_name=RECIPE, url=url, max_model_len=16384)


def write_lab(folder: Path, gateway: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a project with two hosts in the group lab, and make it the current folder."""
    (folder / "hosts").mkdir()
    (folder / "recipes").mkdir()
    shutil.copy(Path(__file__).parents[3] / f"recipes/{RECIPE}.yml", folder / "recipes")
    recipe_file = folder / f"recipes/{RECIPE}.yml"
    recipe_file.write_text(recipe_file.read_text().replace("publish: loopback", "publish: lan"))
    for number, name in enumerate(("one", "two"), 1):
        host = {"address": f"192.0.2.{number}", "user": "spark", "recipe": RECIPE}
        (folder / f"hosts/{name}.yml").write_text(yaml.safe_dump(host))
    lab = {"hosts": ["one", "two"], **({"gateway": gateway} if gateway else {})}
    (folder / "hosts/groups.yml").write_text(yaml.safe_dump({"lab": lab}))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(client_settings, "query_server", summary_of)


@pytest.mark.parametrize(("gateway", "urls"), [(GATEWAY, 1), (None, 2)], ids=["gateway", "none"])
def test_settings_that_are_the_same_for_all_hosts_are_printed_once(
    gateway: dict[str, Any] | None,
    urls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_lab(tmp_path, gateway, monkeypatch)
    codes = client_settings.print_settings(connect_hosts("lab"), json=False, options=ClientOptions("codex"))
    printed, errors = capsys.readouterr()
    assert (codes, printed.count("base_url = "), printed.count("an agent needs")) == ([0, 0], urls, urls), (
        printed + errors
    )


@pytest.mark.parametrize(("client", "variable"), [("", "GATEWAY_KEY"), ("alice", "ALICE_KEY")])
def test_json_has_the_settings_for_requests_through_the_gateway(
    client: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lab(tmp_path, {**GATEWAY, "clients": {"alice": {"key": {"env": "ALICE_KEY"}}}}, monkeypatch)
    options = ClientOptions(gateway_client=client)
    assert client_settings.print_settings(connect_hosts("one"), json=True, options=options) == [0]
    out = capsys.readouterr().out
    assert published.check_output("client", out) == []
    settings = {"name": "lab", "base_url": "http://192.0.2.1:8080/v1", "model": RECIPE, "api_key_variable": variable}
    assert json.loads(out)["gateways"] == [settings]
