"""The list of hosts that `hosts` prints."""

from pathlib import Path

import pytest

from sparkwright.app.connect import select_hosts
from sparkwright.app.queries import host_records


def test_the_list_of_hosts_shows_the_user_and_port_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "recipes").mkdir()
    for name, text in {
        "alias": "{}",
        "full": "{address: 10.0.0.5, user: ops, port: 2222}",
        "v6": "{address: 'fe80::1', port: 22}",
        "sandbox": "{connection: sandbox, user: spark}",
    }.items():
        (tmp_path / f"hosts/{name}.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    host_records.print_host_list(select_hosts("all").hosts, json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:-1] for row in rows[1:]] == [
        ["alias", "ssh", "alias"],
        ["full", "ssh", "ops@10.0.0.5:2222"],
        ["sandbox", "sandbox"],
        ["v6", "ssh", "[fe80::1]:22"],
    ]
