"""Two servers on one host: over a real sshd, on a real Docker Engine, checked by a real systemd."""

import json

import pytest

from tests.bed.conftest import USER_SYSTEMCTL, BedProject

INSTALL = ("health.install", "--host", "spark1", "--every", "5m", "--smoke-every", "0")


def start_state(lab: BedProject, name: str) -> str:
    return lab.on("spark1", f"docker inspect -f '{{{{.Id}}}} {{{{.State.StartedAt}}}}' {name}")


@pytest.fixture
def both(bare: BedProject) -> BedProject:
    """spark1 with a deployed server and a recipe for a second one."""
    bare.deployed()
    text = (bare.root / "recipes/bed.yml").read_text()
    for before, after in (
        ("name: qwen35", "name: small"),
        ("8000:8000", "8001:8000"),
        ("gpu-memory-utilization: 0.30", "gpu-memory-utilization: 0.20"),
        ("served-model-name: qwen3.5-35b", "served-model-name: small"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    (bare.root / "recipes/small.yml").write_text(text)
    with (bare.root / "hosts/spark1.yml").open("a") as host:
        host.write("serves: [bed, small]\n")
    return bare


def server_states(lab: BedProject) -> list[tuple[str, str]]:
    rows = lab.run("status", "--host", "spark1", "--json").events
    return [(row["host"], row["state"]) for row in rows]


def test_second_server_and_a_timer_for_both(both: BedProject) -> None:
    lab, first = both, start_state(both, "qwen35")
    try:
        result = lab.run("deploy", "--host", "spark1")
        assert result.code == 0, result.output
        assert start_state(lab, "qwen35") == first
        second = start_state(lab, "small")
        assert lab.run("restart", "--host", "spark1", "--recipe", "small").code == 0
        assert start_state(lab, "qwen35") == first and start_state(lab, "small") != second
        second_run = lab.run("deploy", "--host", "spark1")
        assert second_run.code == 0 and "2 servers: 2 ok" in second_run.out, second_run.out

        outcome = lab.run(*INSTALL, "--heal", "restart")
        assert outcome.code == 0, outcome.output
        lab.on("spark1", "docker stop -t 1 small")
        lab.on("spark1", USER_SYSTEMCTL + "start sparkwright-health.service")  # returns when both were checked
        for name, state in (("qwen35", "ok"), ("small", "down")):
            record = lab.on("spark1", f"cat .local/state/sparkwright/servers/{name}/health.json")
            assert json.loads(record)["state"] == state
        assert server_states(lab) == [("spark1/bed", "ok"), ("spark1/small", "down")]
        assert start_state(lab, "qwen35") == first
    finally:
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", "docker rm -f small small-previous")
    assert lab.on("spark1", "find .local/state/sparkwright -name 'health*'") == ""


@pytest.fixture
def turns(both: BedProject) -> BedProject:
    """Both servers on demand; the first is awake."""
    both.edit("hosts/spark1.yml", "serves: [", "on_demand: [")
    return both


#: a gateway's control port, with a client that waits for the small server
GATEWAY_PROGRAM = """
import http.server, json
SERVERS = [{"backend": name, "server": f"spark1:{name}", "status": "UP", "running": 0, "requests": 1} for name in ("bed", "small")]

class Answer(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        asleep = [{"backend": "small", "server": "spark1:small", "asked_s": 1}]
        body = json.dumps({"servers": asleep if self.path.endswith("/asleep") else SERVERS}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT

http.server.ThreadingHTTPServer(("127.0.0.1", 18081), Answer).serve_forever()
"""


def test_wake_service_switches_servers_on_request(turns: BedProject) -> None:
    """A unit of a real systemd, with a gateway's control port on the host, and no laptop."""
    lab = turns
    lab.edit("hosts/spark1.yml", "[bed, small]", "[{recipe: bed, stay_awake: 1m}, {recipe: small, wake: on_request}]")
    with (lab.root / "hosts/groups.yml").open("a") as groups:
        groups.write("box: {hosts: [spark1], gateway: {host: spark1, port: 18080, tls: none}}\n")
    state = ".local/state/sparkwright"
    try:
        for command in (("deploy",), ("switch", "--to", "small"), ("switch", "--to", "bed")):
            result = lab.run(*command, "--host", "spark1")
            assert result.code in (0, 4), result.output
        key = json.dumps({"key": "11" * 32}).replace('"', '\\"')
        lab.on("spark1", f'umask 077; echo "{key}" > {state}/gateway-key.json')
        outcome = lab.run(*INSTALL)
        assert outcome.code == 0, outcome.output
        assert lab.on("spark1", USER_SYSTEMCTL + "is-active sparkwright-wake.service") == "active"
        script = GATEWAY_PROGRAM.replace("'", "'\\''")
        lab.on("spark1", f"nohup python3 -c '{script}' >/dev/null 2>&1 & echo $! > /tmp/gateway.pid")
        find_wake = f"grep -q 'the wake service' {state}/servers/small/history.jsonl && echo woken"
        lab.wait_for("spark1", find_wake, "woken", timeout_s=180)
        assert server_states(lab) == [("spark1/bed", "asleep"), ("spark1/small", "up")]
    finally:
        lab.on("spark1", "kill $(cat /tmp/gateway.pid); rm -f /tmp/gateway.pid")
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", f"docker rm -f small small-previous; rm -f {state}/turns.json {state}/gateway-key.json")
    assert lab.on("spark1", f"find {state} ~/.config/systemd -name '*wake*'") == ""


def test_servers_take_turns_and_the_timer_wakes_neither(turns: BedProject) -> None:
    lab, first = turns, start_state(turns, "qwen35")
    try:
        result = lab.run("deploy", "--host", "spark1")
        assert result.code == 0 and "small is asleep and was never verified" in result.out, result.output
        assert start_state(lab, "qwen35") == first
        switch_to_small = lab.run("switch", "--host", "spark1", "--to", "small", "--json")
        assert switch_to_small.code == 0, switch_to_small.output
        second = start_state(lab, "small")

        outcome = lab.run(*INSTALL, "--heal", "restart")
        assert outcome.code == 0, outcome.output
        for _ in range(2):
            lab.on("spark1", USER_SYSTEMCTL + "start sparkwright-health.service")  # returns when both were checked
        assert server_states(lab) == [("spark1/bed", "asleep"), ("spark1/small", "ok")]
        assert lab.on("spark1", "docker inspect -f '{{.State.Running}}' qwen35") == "false"
        switch_back = lab.run("switch", "--host", "spark1", "--to", "bed", "--json")
        assert switch_back.code == 0, switch_back.output
        assert start_state(lab, "qwen35").split()[0] == first.split()[0], "the same container"
        assert start_state(lab, "small") == second
    finally:
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", "docker rm -f small small-previous; rm -f .local/state/sparkwright/turns.json")
