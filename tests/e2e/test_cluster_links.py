"""`cluster.inspect` and `cluster.check` on two hosts that read the files of linked Sparks from folders."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.queries import link_rules
from sparkwright.app.queries.link_rules import HostLinks
from sparkwright.project import starter
from tests import commands, published
from tests.doctor import link_tree


@dataclass
class LinkedPair:
    """A project with two hosts."""

    top: Path

    def write_host(self, name: str, number: int, **files: Any) -> None:
        link_tree.write_host(self.top / f"{name}.root", number, **files)

    def run(self, *words: str) -> tuple[int, str]:
        completed = commands.run(*words, cwd=self.top / "project", env={**os.environ, "HOME": str(self.top / "home")})
        return completed.returncode, completed.stdout + completed.stderr

    def findings(self, *words: str) -> tuple[int, list[tuple[str, str, str, str]]]:
        """Return the exit code of cluster.check, and host, check, verdict and evidence of each finding."""
        code, out = self.run("cluster.check", "--host", "pair", "--json", *words)
        assert published.check_output("cluster.check", out) == []
        rows = json.loads(out)["findings"]
        return code, [(row["host"], row["check"], row["verdict"], row["evidence"]) for row in rows]


@pytest.fixture
def pair(tmp_path: Path) -> LinkedPair:
    value = LinkedPair(tmp_path)
    (tmp_path / "home").mkdir()
    starter.write_starter(tmp_path / "project")
    for number, name in enumerate(("spark1", "spark2"), 1):
        value.write_host(name, number)
        text = f"connection: local\nenv: {{SPARKWRIGHT_ROOT: {tmp_path}/{name}.root}}\n"
        (tmp_path / f"project/hosts/{name}.yml").write_text(text)
    (tmp_path / "project/hosts/groups.yml").write_text("pair: {hosts: [spark1, spark2]}\n")
    return value


def test_inspect_proposes_both_halves_of_a_port_and_writes_them_on_request(pair: LinkedPair) -> None:
    code, out = pair.run("cluster.inspect", "--host", "pair")
    assert code == 2, out
    assert "fabric:\n  interfaces: [enp1s0f1np1, enP2p1s0f1np1]\n  address: 192.168.100.1\n" in out
    before = (pair.top / "project/hosts/spark1.yml").read_text()
    assert "fabric" not in before
    code, out = pair.run("cluster.inspect", "--host", "pair", "--write")
    assert code == 0, out
    assert (pair.top / "project/hosts/spark2.yml").read_text().endswith("  address: 192.168.100.2\n")
    assert (pair.top / "project/hosts/spark1.yml").read_text().startswith(before)
    assert pair.run("cluster.inspect", "--host", "pair")[0] == 0


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        ("80", ["HOST", "INTERFACE", "ADAPTER", "STATE", "RATE", "MTU", "ADDRESS"]),
        ("60", ["HOST", "INTERFACE", "STATE", "MTU", "ADDRESS"]),
    ],
)
def test_links_have_one_line_each_in_a_narrow_window(pair: LinkedPair, columns: str, titles: list[str]) -> None:
    environment = {**os.environ, "HOME": str(pair.top / "home"), "COLUMNS": columns}
    completed = commands.run("cluster.inspect", "--host", "pair", cwd=pair.top / "project", env=environment)
    header, *lines = completed.stdout.partition("\n\n")[0].splitlines()
    assert header.split() == titles
    rows = [line for line in lines if line.startswith("spark")]
    assert len(rows) == 4 and all(len(row) <= int(columns) and "192.168." in row for row in rows), completed.stdout


def test_healthy_links_are_ready(pair: LinkedPair) -> None:
    message = "The links between spark1 and spark2 are ready for a cluster.\n"
    assert pair.run("cluster.check", "--host", "pair") == (0, message)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"mtu": 1500}, ("", "MTU", "bad", "spark1 9000, spark2 1500: large transfers fail")),
        ({"over": "enP7s7"}, ("spark2", "path", "bad", "192.168.100.1 is reached over enP7s7, not over the fabric")),
        ({"ping": "exit 1"}, ("spark2", "path", "bad", "a frame of 9000 bytes does not reach 192.168.100.1 over enp1s0f1np1")),
        ({"firmware": "28.45.1020"}, ("", "NIC firmware", "warning", "spark1 28.45.4028, spark2 28.45.1020: updating only one host")),
        ({"driver": "590.11"}, ("", "NVIDIA driver", "warning", "spark1 580.95.05, spark2 590.11: all members should have the same driver")),
        ({"kernel": "6.17.0-1008-nvidia"}, ("", "kernel", "warning", "spark1 6.14.0-1015-nvidia, spark2 6.17.0-1008-nvidia")),
    ],
)  # fmt: skip
def test_each_difference_is_a_finding(
    pair: LinkedPair, change: dict[str, Any], finding: tuple[str, str, str, str]
) -> None:
    pair.write_host("spark2", 2, **change)
    code, link_findings = pair.findings()
    *columns, evidence = finding
    assert [row for row in link_findings if list(row[:3]) == columns and row[3].startswith(evidence)], link_findings
    assert code == (1 if finding[2] == "bad" else 0)


def test_different_subnets_are_bad(pair: LinkedPair) -> None:
    ip = pair.top / "spark2.root/usr/bin/ip"
    ip.write_text(ip.read_text().replace("192.168.100.2", "10.9.9.2"))
    code, link_findings = pair.findings()
    assert ("", "subnets", "bad", "spark1 192.168.100.1/24, spark2 10.9.9.2/24: not in one subnet") in link_findings
    assert code == 1


def test_an_address_without_a_roce_v2_gid_is_bad(pair: LinkedPair) -> None:
    gid = pair.top / "spark2.root/sys/class/infiniband/rocep1s0f1/ports/1/gid_attrs/types/3"
    gid.write_text("IB/RoCE v1\n")
    code, link_findings = pair.findings()
    bad = [evidence for host, _, verdict, evidence in link_findings if (host, verdict) == ("spark2", "bad")]
    assert code == 1 and "no RoCE v2 GID for 192.168.100.2:" in " ".join(bad)


def test_unknown_interfaces_are_bad_and_the_existing_ones_listed(pair: LinkedPair) -> None:
    path = pair.top / "project/hosts/spark2.yml"
    path.write_text(path.read_text() + "fabric: {interfaces: [enp9s0], address: 192.168.100.2}\n")
    code, link_findings = pair.findings()
    evidence = "no RDMA adapter has the interface enp9s0; interfaces: enP2p1s0f1np1, enp1s0f1np1"
    assert code == 1 and ("spark2", "fabric", "bad", evidence) in link_findings


def test_the_other_hosts_are_checked_without_an_unreachable_one(pair: LinkedPair) -> None:
    (pair.top / "project/hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\n")
    code, out = pair.run("cluster.check", "--host", "pair,away", "--json")
    error, found = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    assert (code, error["host"], error["exit"], found["bad"]) == (3, "away", 3, False)


def test_a_single_host_is_refused(pair: LinkedPair) -> None:
    code, out = pair.run("cluster.check", "--host", "spark1")
    assert (code, out) == (5, "a cluster needs at least two hosts. Name its group: `--host pair`.\n")


def test_a_host_without_an_active_link_is_bad(pair: LinkedPair) -> None:
    for half in ("rocep1s0f1", "roceP2p1s0f1"):
        (pair.top / f"spark2.root/sys/class/infiniband/{half}/ports/1/state").write_text("1: DOWN\n")
    code, link_findings = pair.findings()
    assert ("spark2", "fabric", "bad", "no active link has an IPv4 address") in link_findings
    assert code == 1


#: prints a timed run like perftest 6.06, and records its arguments
RATE = """echo "$@" >> {top}/{name}.words
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
echo ' 65536      1058902          0.00               {gbps}		   0.176500'"""


def check_bandwidth(pair: LinkedPair, spark1: str, spark2: str) -> tuple[int, list[tuple[str, str, str, str]]]:
    """Run cluster.check --bandwidth with these programs as ib_write_bw."""
    for name, text in (("spark1", spark1), ("spark2", spark2)):
        path = pair.top / f"{name}.root/usr/bin/ib_write_bw"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return pair.findings("--bandwidth")


@pytest.mark.parametrize(
    ("gbps", "verdict", "evidence"),
    [
        ("92.57", "ok", "92.6 + 92.6 = 185 Gb/s of 200"),
        ("60.10", "warning", "60.1 + 60.1 = 120 Gb/s of 200"),
        ("6.52", "bad", "6.5 + 6.5 = 13 Gb/s: the card is degraded"),
    ],
)
def test_both_halves_of_a_link_are_measured_and_a_degraded_card_is_bad(
    pair: LinkedPair, gbps: str, verdict: str, evidence: str
) -> None:
    programs = [RATE.format(top=pair.top, name=name, gbps=gbps) for name in ("spark1", "spark2")]
    code, found = check_bandwidth(pair, *programs)
    assert ("spark1, spark2", "bandwidth", verdict, evidence) in found
    assert code == (1 if verdict == "bad" else 0)
    sent, received = ((pair.top / f"{name}.words").read_text() for name in ("spark1", "spark2"))
    assert sorted(line.split()[-1] for line in sent.splitlines()) == ["192.168.100.2", "192.168.101.2"]
    command = "-d rocep1s0f1 -x 3 -p 18515 -D 4 -f 1 -F --report_gbits"
    assert command in received.splitlines() and f"{command} 192.168.100.2" in sent.splitlines()


def test_the_sender_retries_until_the_receiver_listens(pair: LinkedPair) -> None:
    good = RATE.format(top=pair.top, name="spark1", gbps="92.57")
    refused = f"""mkdir {pair.top}/tried-$4 2>/dev/null && {{ echo "Couldn't connect to $9:$4" >&2; exit 1; }}"""
    _, found = check_bandwidth(
        pair, f"{refused.replace('$4', '$6')}\n{good}", RATE.format(top=pair.top, name="spark2", gbps="92.57")
    )
    assert ("spark1, spark2", "bandwidth", "ok", "92.6 + 92.6 = 185 Gb/s of 200") in found
    assert len(list(pair.top.glob("tried-*"))) == 2


def test_a_bandwidth_that_cannot_be_measured_is_unknown_with_the_reason(pair: LinkedPair) -> None:
    code, link_findings = pair.findings("--bandwidth")
    assert code == 4 and link_findings[-1][3] == "rocep1s0f1, roceP2p1s0f1: ib_write_bw is not installed"
    reason = "Unable to find the Infiniband/RoCE device"
    _, link_findings = check_bandwidth(pair, f"echo '{reason}'; exit 1", f"echo '{reason}'; exit 1")
    assert link_findings[-1][:3] == ("spark1, spark2", "bandwidth", "unknown") and reason in link_findings[-1][3]


def test_different_clocks_are_a_warning_with_the_offset() -> None:
    """The hosts of this file share a clock, so the rule is called with offsets."""
    offsets = [("spark1", (0.0, 0.4)), ("spark2", (-12.4, -12.0)), ("spark3", (-0.5, 0.9))]
    members = [HostLinks(host, (), clock_ahead_bounds_s=clock_ahead_bounds_s) for host, clock_ahead_bounds_s in offsets]
    clock_findings = [finding for _, finding in link_rules.check_links(members) if finding.check == "clock"]
    assert [(item.verdict, item.evidence) for item in clock_findings] == [
        ("warning", "the clock of spark2 is 12.4 s behind that of spark1 (to within 0.4 s): timestamps in their logs and histories do not line up"),
    ]  # fmt: skip
