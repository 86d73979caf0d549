"""`provision` and `--undo` over real ssh, sudo and systemd. vm.swappiness is left out, because the kernel is this machine's."""

from collections.abc import Iterator

import pytest

from tests.bed.conftest import BedProject

STATE = "/var/lib/sparkwright"
TASK = "Set clock cap, swap, earlyoom and Ollama's limits"
#: an nvidia-smi that keeps the clock cap in a file, and an earlyoom that writes its arguments to a file
SETUP_COMMAND = r"""
sudo tee /usr/bin/nvidia-smi >/dev/null <<'X'
#!/bin/sh
case "$1" in -lgc) echo "$2" > /run/cap ;; -rgc) rm -f /run/cap ;; *) exec /usr/local/bin/nvidia-smi "$@" ;; esac
X
sudo tee /etc/systemd/system/earlyoom.service >/dev/null <<'X'
[Service]
EnvironmentFile=/etc/default/earlyoom
ExecStart=/bin/sh -c 'echo "$EARLYOOM_ARGS" > /run/earlyoom; exec sleep infinity'
X
echo 'EARLYOOM_ARGS="-r 3600"' | sudo tee /etc/default/earlyoom >/dev/null
sudo chmod 755 /usr/bin/nvidia-smi; sudo systemctl daemon-reload; sudo systemctl restart earlyoom
"""
CLEAR_COMMAND = (
    "sudo systemctl disable -q --now sparkwright-clock-cap earlyoom; sudo rm -rf /usr/bin/nvidia-smi /run/cap /run/earlyoom"
    f" /etc/default/earlyoom /etc/systemd/system/earlyoom.service {STATE}; sudo systemctl daemon-reload"
)
ETC_DIGESTS = "sudo find /etc/systemd/system /etc/default -type f | sort | xargs sudo sha256sum"
OLLAMA_ENVIRONMENT = "systemctl show ollama -p Environment --value"


@pytest.fixture
def capped(lab: BedProject) -> Iterator[BedProject]:
    limits = "ollama_limits: {max_loaded_models: 1, keep_alive: 5m}"
    with (lab.root / "hosts/spark1.yml").open("a") as host:
        host.write(f"\nvars: {{clock_cap_mhz: 2000, earlyoom_percent: 3, {limits}}}\n")
    lab.on("spark1", CLEAR_COMMAND)
    lab.on("spark1", SETUP_COMMAND)
    yield lab
    lab.run("provision", "--host", "spark1", "--undo")
    lab.on("spark1", CLEAR_COMMAND)


def test_host_settings_are_previewed_made_and_undone(capped: BedProject) -> None:
    before, ollama = capped.on("spark1", ETC_DIGESTS), capped.on("spark1", OLLAMA_ENVIRONMENT)
    preview = capped.run("provision", "--host", "spark1", "--check", "--diff", "--json")
    fields = {row["field"]: row["after"] for row in preview.task(TASK)["diff"]}
    assert fields["clock cap"] == "2000 MHz" and fields["earlyoom"] == 'EARLYOOM_ARGS="-m 3"'
    assert preview.code == 2 and capped.on("spark1", ETC_DIGESTS) == before

    provisioned = capped.run("provision", "--host", "spark1", "--json")
    assert provisioned.code == 0 and provisioned.task(TASK)["status"] == "changed", provisioned.output
    assert capped.on("spark1", "cat /run/cap /run/earlyoom") == "0,2000\n-m 3"
    assert capped.on("spark1", "systemctl is-enabled sparkwright-clock-cap") == "enabled"
    assert "OLLAMA_MAX_LOADED_MODELS=1" in capped.on("spark1", OLLAMA_ENVIRONMENT)
    assert capped.run("provision", "--host", "spark1", "--json").task(TASK)["status"] == "ok"
    capped.on("spark1", "sudo rm /run/cap; sudo systemctl restart sparkwright-clock-cap")  # as at a boot
    assert capped.on("spark1", "cat /run/cap") == "0,2000"

    undone = capped.run("provision", "--host", "spark1", "--undo", "--json")
    assert undone.code == 0 and undone.task(TASK)["status"] == "changed", undone.output
    assert undone.task("Create models directory")["status"] == "skipped", "it creates nothing"
    assert capped.on("spark1", ETC_DIGESTS) == before and capped.on("spark1", OLLAMA_ENVIRONMENT) == ollama
    assert capped.on("spark1", "cat /run/cap; cat /run/earlyoom") == "-r 3600"
    assert capped.on("spark1", f"sudo ls {STATE}") == ""
    assert capped.run("provision", "--host", "spark1", "--undo", "--json").task(TASK)["status"] == "ok"


def test_doctor_reports_an_ineffective_clock_cap(capped: BedProject) -> None:
    assert capped.run("provision", "--host", "spark1").code == 0
    output = capped.run("doctor", "--host", "spark1").out
    assert "clock cap 2000 MHz, which is not in effect: the GPU runs at 2411 MHz" in output
