"""Two servers on one host: over a real sshd, on a real Docker Engine, checked by a real systemd."""

import json
import time

import pytest

from tests.bed.conftest import BedProject

pytestmark = pytest.mark.bed
AS_USER = "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user "
NAMES = ("qwen35", "small")


def start_state(lab: BedProject, name: str) -> str:
    return lab.on("spark1", f"docker inspect -f '{{{{.Id}}}} {{{{.State.StartedAt}}}}' {name}")


@pytest.fixture
def both(bare: BedProject) -> BedProject:
    """spark1, on which a first server was deployed alone, is to serve a second one."""
    assert bare.run("deploy", "--host", "spark1", "--json").code == 0
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


def test_second_server_and_a_timer_for_both(both: BedProject) -> None:
    lab, first = both, start_state(both, "qwen35")
    try:
        result = lab.run("deploy", "--host", "spark1")
        assert result.code == 0, result.out + result.err
        assert start_state(lab, "qwen35") == first
        second = start_state(lab, "small")
        assert lab.run("restart", "--host", "spark1", "--recipe", "small").code == 0
        assert start_state(lab, "qwen35") == first and start_state(lab, "small") != second
        second_run = lab.run("deploy", "--host", "spark1")
        assert second_run.code == 0 and "2 servers: 2 ok" in second_run.out, second_run.out

        outcome = lab.run(
            "health.install", "--host", "spark1", "--every", "5m", "--heal", "restart", "--smoke-every", "0"
        )
        assert outcome.code == 0, outcome.out + outcome.err
        lab.on("spark1", "docker stop -t 1 small")
        lab.on("spark1", AS_USER + "start sparkwright-health.service")  # returns when both were checked
        states = {
            name: json.loads(lab.on("spark1", f"cat .local/state/sparkwright/servers/{name}/health.json"))["state"]
            for name in NAMES
        }
        assert states == {"qwen35": "ok", "small": "down"}
        rows = [json.loads(line) for line in lab.run("status", "--host", "spark1", "--json").out.splitlines()]
        assert [(row["host"], row["state"]) for row in rows] == [("spark1/bed", "ok"), ("spark1/small", "down")]
        assert start_state(lab, "qwen35") == first
    finally:
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", "docker rm -f small small-previous")
    leftovers = lab.on("spark1", "find .local/state/sparkwright -name 'health*'")
    assert leftovers == ""


@pytest.fixture
def turns(both: BedProject) -> BedProject:
    """The two take turns; the first, which is there, is awake."""
    path = both.root / "hosts/spark1.yml"
    path.write_text(path.read_text().replace("serves: [", "on_demand: ["))
    return both


#: what a gateway answers its host; a client asks for the small one all the time
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
    """Confined as a real systemd confines it, with a gateway's control port beside it, and no laptop."""
    lab, host = turns, turns.root / "hosts/spark1.yml"
    turn = "[{recipe: bed, stay_awake: 1m}, {recipe: small, wake: on_request}]"
    host.write_text(host.read_text().replace("[bed, small]", turn))
    with (lab.root / "hosts/groups.yml").open("a") as groups:
        groups.write("box: {hosts: [spark1], gateway: {host: spark1, port: 18080, tls: none}}\n")
    state = ".local/state/sparkwright"
    try:
        for command in (("deploy",), ("switch", "--to", "small"), ("switch", "--to", "bed")):
            result = lab.run(*command, "--host", "spark1")
            assert result.code in (0, 4), result.out[-3000:] + result.err
        key = json.dumps({"key": "11" * 32}).replace('"', '\\"')
        lab.on("spark1", f'umask 077; echo "{key}" > {state}/gateway-key.json')
        outcome = lab.run("health.install", "--host", "spark1", "--every", "5m", "--smoke-every", "0")
        assert outcome.code == 0, outcome.out + outcome.err
        assert lab.on("spark1", AS_USER + "is-active sparkwright-wake.service") == "active"
        script = GATEWAY_PROGRAM.replace("'", "'\\''")
        lab.on("spark1", f"nohup python3 -c '{script}' >/dev/null 2>&1 & echo $! > /tmp/gateway.pid")
        until_s = time.monotonic() + 180
        while '"who": "the wake service"' not in lab.on("spark1", f"cat {state}/servers/small/history.jsonl"):
            assert time.monotonic() < until_s, lab.on(
                "spark1", AS_USER + "status -n 30 sparkwright-wake.service || true"
            )
            time.sleep(1)
        rows = [json.loads(line) for line in lab.run("status", "--host", "spark1", "--json").out.splitlines()]
        assert [(row["host"], row["state"]) for row in rows] == [("spark1/bed", "asleep"), ("spark1/small", "up")], rows
    finally:
        lab.on("spark1", "kill $(cat /tmp/gateway.pid); rm -f /tmp/gateway.pid")
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", f"docker rm -f small small-previous; rm -f {state}/turns.json {state}/gateway-key.json")
    assert lab.on("spark1", f"find {state} ~/.config/systemd -name '*wake*'") == ""


def test_servers_take_turns_and_the_timer_wakes_neither(turns: BedProject) -> None:
    lab, first = turns, start_state(turns, "qwen35")
    try:
        result = lab.run("deploy", "--host", "spark1")
        assert result.code == 0 and "small is asleep and was never verified" in result.out, result.out + result.err
        assert start_state(lab, "qwen35") == first
        switch_to_small = lab.run("switch", "--host", "spark1", "--to", "small", "--json")
        assert switch_to_small.code == 0, switch_to_small.out[-3000:]
        second = start_state(lab, "small")

        outcome = lab.run(
            "health.install", "--host", "spark1", "--every", "5m", "--heal", "restart", "--smoke-every", "0"
        )
        assert outcome.code == 0, outcome.out + outcome.err
        for _ in range(2):
            lab.on("spark1", AS_USER + "start sparkwright-health.service")  # returns when both were checked
        rows = [json.loads(line) for line in lab.run("status", "--host", "spark1", "--json").out.splitlines()]
        assert [(row["host"], row["state"]) for row in rows] == [("spark1/bed", "asleep"), ("spark1/small", "ok")]
        assert lab.on("spark1", "docker inspect -f '{{.State.Running}}' qwen35") == "false"
        switch_back = lab.run("switch", "--host", "spark1", "--to", "bed", "--json")
        assert switch_back.code == 0, switch_back.out[-3000:]
        assert start_state(lab, "qwen35").split()[0] == first.split()[0], "the same container"
        assert start_state(lab, "small") == second
    finally:
        lab.run("health.uninstall", "--host", "spark1")
        lab.on("spark1", "docker rm -f small small-previous; rm -f .local/state/sparkwright/turns.json")
