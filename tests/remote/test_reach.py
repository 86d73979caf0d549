"""Connecting starts after a quick first read of the inventory; a host that the full read contradicts gets no request."""

from pathlib import Path

import pytest

from sparkwright.app import connect
from sparkwright.errors import Refused
from sparkwright.project.inventory import patterns
from sparkwright.remote import open_link
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote.conftest import SshLab


@pytest.fixture
def project(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = lab.create_project(lab.folder / "project")
    monkeypatch.chdir(folder)
    return folder


def link_host_key(link: object) -> str:
    assert isinstance(link, SshLink)
    return link.host_key()


def test_early_connection_is_used(project: Path, lab: SshLab) -> None:
    selection = connect.connect_hosts("spark1", "light")
    (member,) = selection.fleet.members
    link = member.link
    assert lab.sshd.known_hosts_line().split()[2] in link_host_key(link)
    assert member.open() is link
    selection.fleet.close()
    assert (lab.sshd.folder / "log").read_text().count("Accepted publickey") == 1


def test_early_connection_to_another_host_is_dropped(
    project: Path, lab: SshLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lab.start_sshd("two")
    monkeypatch.setattr(patterns, "read_ssh_hosts", lambda project, pattern: [lab.host(port=other.port)])
    selection = connect.connect_hosts("spark1", "light")
    (member,) = selection.fleet.members
    assert lab.sshd.known_hosts_line().split()[2] in link_host_key(member.link)
    selection.fleet.close()


def test_early_connection_is_closed_if_the_file_is_invalid(
    project: Path, lab: SshLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "hosts/spark1.yml").open("a").write("recipee: x\n")
    links: list[SshLink] = []

    def record_link(*args: object) -> object:
        links.append(open_link(*args))  # type: ignore[arg-type]
        return links[-1]

    monkeypatch.setattr(connect, "open_link", record_link)
    with pytest.raises(Refused, match="recipee"):
        connect.connect_hosts("spark1", "light")
    (link,) = links
    transport = link._transport()
    transport.join(10)
    assert not transport.is_active()
