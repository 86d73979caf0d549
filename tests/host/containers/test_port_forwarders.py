"""Docker's port forwarders are recognised by their command lines, which any program can imitate."""

import pytest

from sparkwright.host.containers import port_forwarders

LINE = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8000 -container-ip 172.17.0.2 -container-port 80"


def test_the_command_line_of_a_forwarder_is_parsed() -> None:
    forwarder = port_forwarders.parse_command_line(7, LINE.split())
    assert forwarder is not None
    assert (forwarder.pid, forwarder.port, forwarder.address, forwarder.container_port) == (7, 8000, "172.17.0.2", 80)
    newer = port_forwarders.parse_command_line(7, [*LINE.replace("172.17.0.2", "fd00::2").split(), "-use-listen-fd"])
    assert newer is not None and newer.address == "fd00::2"
    assert str(forwarder) == "Docker's port forwarder (docker-proxy, pid 7) for 172.17.0.2:80"


@pytest.mark.parametrize(
    "line",
    [
        "", "python3 -m http.server 8000", LINE.replace("-proto tcp", "-proto udp"), LINE.replace("172.17.0.2", "$(reboot)"),
        LINE.replace("172.17.0.2", "172.17.0.2\x1b[2J"), LINE.replace("8000", "80000"), LINE.replace("8000", "8e3"),
        LINE.replace("8000", "\u0668000"), LINE.replace("-host-port 8000 ", ""), LINE + " x" * 64,
    ],
)  # fmt: skip
def test_other_command_lines_are_ignored(line: str) -> None:
    assert port_forwarders.parse_command_line(7, line.split(" ") if line else []) is None
