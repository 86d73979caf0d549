"""Damaged answers about a host's links are refused with a sentence, or safe to print and to write."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.queries import cluster_links, host_requests, link_rules
from sparkwright.app.queries.cluster_links import FINDING_COLUMNS, LINK_COLUMNS
from sparkwright.app.queries.link_rules import HostLinks
from sparkwright.console import grid
from sparkwright.console.events import tables
from sparkwright.doctor import fabric
from sparkwright.doctor.host import Host
from sparkwright.errors import Failed
from sparkwright.fleet.member import Member
from sparkwright.project.inventory import host as inventory
from sparkwright.trust import bounds
from tests.doctor import link_tree
from tests.fuzz.harness import damaged_values, feed, feed_texts
from tests.modules.context import RecordingContext

HOST = inventory.Host("spark1", "127.0.0.1")
LINK = {
    "adapter": "rocep1s0f1", "interface": "enp1s0f1np1", "firmware": "28.45.4028", "pci": "32.0 GT/s PCIe x4",
    "active": True, "rate_gbps": 200.0, "mtu": 9000, "carrier": True, "addresses": ["192.168.100.1/24"],
    "gids": ["192.168.100.1"],
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "links": [LINK, {**LINK, "adapter": "roceP2p1s0f1", "interface": "enP2p1s0f1np1", "addresses": []}],
    "findings": [{"check": "fabric", "verdict": "bad", "evidence": "down", "fix": "", "source": "", "repair": ""}],
    "paths": [{"peer": "192.168.100.2", "interface": "enp1s0f1np1", "mtu": 9000, "reached": True}],
    "kernel": "6.14.0-1015-nvidia",
    "driver": "580.95.05",
    "now_s": 1795303826.5,
}
GOOD = cluster_links._parse_links(Member(HOST), host_requests.validate_answer("fabric", ANSWER, host="spark1"))


def read_links(answer: Any) -> HostLinks | None:
    """Read an answer as `cluster.check` and `cluster.inspect --write` do, including the output on the screen and in the file."""
    if not isinstance(answer, dict):
        return None
    links = cluster_links._parse_links(
        Member(HOST), host_requests.validate_answer("fabric", bounds.sanitize(answer), host="spark1")
    )
    findings = link_rules.check_links([GOOD, links])
    rows = [{"host": host, **cluster_links._finding_row(finding)} for host, finding in findings]
    lines = [*tables.format_table(rows, FINDING_COLUMNS, 80)]
    cells = [cluster_links._link_cells("spark1", link) for link in links.links]
    lines += [("", grid.plain_text(line)) for row in grid.format_rows(LINK_COLUMNS, cells, 80) for line in row]
    assert not any("\x1b" in text for _, text in lines)
    text = cluster_links._fabric_yaml(link_rules.propose_fabric(links.links))
    written = yaml.safe_load(text) if text else {}
    assert set(written) <= {"fabric"}, text
    if written:
        names = {link.interface for link in links.links}
        assert set(written["fabric"]["interfaces"]) <= names, text
    return links


def test_answers() -> None:
    feed(read_links, damaged_values([ANSWER]))


@pytest.mark.parametrize(
    "link",
    [
        {"interface": "x]\nsecrets: {VLLM_API_KEY: {command: [id]}}\ny: [z"},
        {"interface": "- x"},
        {"adapter": "x, y"},
        {"addresses": ["999.9.9.9/99"]},
        {"addresses": ["192.168.100.1/24\n"]},
        {"gids": ["300.1.1.1"]},
        {"rate_gbps": 1e300},
        {"pci": "\u0661"},
    ],
)
def test_an_invalid_link_is_refused(link: dict[str, Any]) -> None:
    with pytest.raises(Failed, match=r"its answer can't be used: fabric\.links\[0\]"):
        read_links({**ANSWER, "links": [{**LINK, **link}]})


def test_unknown_fields_are_ignored() -> None:
    finding = {**ANSWER["findings"][0], "more": 1}
    links = read_links({**ANSWER, "links": [{**LINK, "more": 1}], "findings": [finding]})
    assert links is not None and [link.interface for link in links.links] == ["enp1s0f1np1"]


@pytest.mark.parametrize("name", ["on", "1e5", "null", "0x10"])
def test_an_interface_with_the_name_of_a_yaml_value_is_quoted(name: str) -> None:
    links = read_links({**ANSWER, "links": [{**LINK, "interface": name}]})
    assert links is not None
    written = yaml.safe_load(cluster_links._fabric_yaml(link_rules.propose_fabric(links.links)))
    assert written["fabric"]["interfaces"] == [name]


def test_output_of_ip(tmp_path: Path) -> None:
    link_tree.write_host(tmp_path / "root", 1)
    host = Host(RecordingContext(tmp_path, root=str(tmp_path / "root")), "user")
    addresses = [{"ifname": "enp1s0f1np1", "addr_info": [{"local": "192.168.100.1", "prefixlen": 24}]}]

    def read(text: str) -> None:
        host.read_output = lambda *argv: text  # type: ignore[method-assign]
        for addresses in fabric.addresses_by_interface(host).values():
            assert all(host_requests.parse_cidr(address) == address for address in addresses)

    feed_texts(read, [json.dumps(addresses).encode()])
