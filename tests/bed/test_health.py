"""Scheduled checks under a real systemd: installed, run, and removed without a trace."""

import json

import pytest

from tests.bed.conftest import USER_SYSTEMCTL, BedProject
from tests.waiting import wait_until

#: lists the files of an install and of checks, and the units that systemd has loaded
TRACES = r"""
find ~ /etc/systemd /var/lib/systemd/linger /srv/textfile \( -iname '*health*' -o -iname 'sparkwright-guard*' -o -iname 'in-use' -o -name 'sparkwright.prom' \
  -o -path '/var/lib/systemd/linger/*' \) -not -path '*/runtime/*/lib/*' 2>/dev/null | sort
sudo systemctl list-units --all --no-legend 'sparkwright*'; crontab -l 2>/dev/null | grep -i sparkwright
XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user list-units --all --no-legend 'sparkwright*' 2>/dev/null
true
"""


@pytest.fixture
def clean(bare: BedProject) -> BedProject:
    bare.run("health.uninstall", "--host", "spark1")
    bare.on("spark1", "sudo loginctl disable-linger ops")
    bare.on("spark1", "sudo mkdir -p /srv/textfile && sudo chown ops /srv/textfile && rm -f /srv/textfile/*")
    assert bare.on("spark1", TRACES) == ""
    return bare


def assert_uninstalls_without_a_trace(lab: BedProject) -> None:
    assert lab.run("health.uninstall", "--host", "spark1").code == 0
    assert lab.on("spark1", TRACES) == ""


def test_user_timer_checks_and_uninstalls_without_a_trace(clean: BedProject) -> None:
    clean.deployed()
    install = [
        "health.install", "--host", "spark1", "--every", "5m", "--heal", "restart", "--smoke-every", "0",
        "--textfile", "/srv/textfile", "--json",
    ]  # fmt: skip
    outcome = clean.run(*install)
    assert outcome.code == 0, outcome.output
    result = outcome.task("Install the health timer")
    assert result["data"]["scope"] == "user"
    assert result["data"]["health"]["state"] == "ok"
    assert clean.on("spark1", USER_SYSTEMCTL + "is-active sparkwright-health.timer") == "active"
    second_run = clean.run(*install)
    assert second_run.recap["changed"] == 0, second_run.out

    clean.on("spark1", USER_SYSTEMCTL + "stop sparkwright-health.timer")  # its first check is at a random time
    clean.on("spark1", "docker stop -t 1 qwen35")
    latest = clean.check_health()
    assert (latest["state"], latest["before"], latest["every_s"]) == ("down", "ok", 300)
    assert 'sparkwright_health_state{state="down"} 1.0' in clean.on("spark1", "cat /srv/textfile/sparkwright.prom")
    assert clean.run("health", "--host", "spark1").code == 1

    clean.on("spark1", USER_SYSTEMCTL + "start sparkwright-health.timer")
    assert_uninstalls_without_a_trace(clean)


def test_system_timer_runs_the_check_confined_as_the_user(clean: BedProject) -> None:
    outcome = clean.run("health.install", "--host", "spark1", "--system", "--json")
    assert outcome.code == 0, outcome.output
    result = outcome.task("Install the health timer")["data"]
    assert (result["scope"], result["confined"]) == ("system", True)
    assert result["health"]["state"] == "unknown"  # nothing was deployed there
    unit = "/etc/systemd/system/sparkwright-health.service"
    assert clean.on("spark1", f"sudo systemd-analyze verify {unit} 2>&1") == ""
    exposure = clean.on("spark1", "sudo systemd-analyze security --no-pager sparkwright-health.service | tail -1")
    assert float(exposure.split(": ")[1].split()[0]) < 3.0, exposure
    owners = clean.on("spark1", "cd .local/state/sparkwright; stat -c %U health.json health-settings.json")
    assert owners.split() == ["ops", "ops"]
    assert_uninstalls_without_a_trace(clean)


def test_hanging_server_is_restarted_by_the_timer(clean: BedProject) -> None:
    clean.recipe("  restart: unless-stopped\n", "  restart: unless-stopped\n  stop_timeout_s: 2\n")
    clean.deployed()
    started = clean.on("spark1", "docker inspect -f '{{.State.StartedAt}}' qwen35")
    stat_plans = "stat -c '%a %n' .local/state/sparkwright/restart_plans/*.json"
    before = clean.on("spark1", stat_plans)
    assert before.startswith("600 "), before
    clean.on("spark1", "rm -r .local/state/sparkwright/restart_plans")
    install = ["health.install", "--host", "spark1", "--heal", "restart", "--smoke-every", "0"]
    result = clean.run(*install)
    assert (result.code, "will not restart" in result.out) == (0, False), result.out
    assert clean.on("spark1", stat_plans) == before, "the install writes the plans of a deploy"
    clean.on("spark1", "docker kill --signal STOP qwen35")  # a hanging process; its state is still running
    first = clean.check_health()
    assert (first["state"], first["cure"]) == ("down", "restart")
    assert "second check" in first["healed"]
    second = clean.check_health()
    assert (second["state"], second["healed"].split(" (")[0]) == ("ok", "restarted"), second["healed"]
    inspect = "docker inspect -f '{{.State.StartedAt}} {{.HostConfig.RestartPolicy.Name}}' qwen35"
    restarted, policy = clean.on("spark1", inspect).split()
    assert restarted > started and policy == "unless-stopped"
    assert "healed" in clean.run("history", "--host", "spark1").out
    run = second["healed"].split("(run ")[1].split(")")[0]
    journal = clean.on("spark1", f"cat .local/state/sparkwright/runs/{run}/events.jsonl")
    finished = [item for item in map(json.loads, journal.splitlines()) if item["event"] == "task_finished"]
    assert {"drain", "verify_logs", "smoke_test"} <= {item["module"] for item in finished if item["status"] == "ok"}
    assert_uninstalls_without_a_trace(clean)


def test_memory_guard_kills_the_server_and_the_check_reports_it(clean: BedProject) -> None:
    clean.deployed()
    result = clean.run("health.install", "--host", "spark1", "--smoke-every", "0", "--json")
    assert result.code == 0, result.output
    assert clean.on("spark1", USER_SYSTEMCTL + "is-active sparkwright-guard.service") == "active"
    folder = ".local/state/sparkwright/guard"
    assert "state guarding" in clean.on("spark1", f"head -c 2048 {folder}/service.ring")
    checked = clean.check_health()  # the first check ran before the guard was started
    assert [item["level"] for item in checked["evidence"] if item["check"] == "guard"] == ["ok"]
    # reserve more memory than the host has, so that the guard kills the server
    clean.on("spark1", f"sed -i '/^floor/d' {folder}/service.conf; echo floor 999999999999 >> {folder}/service.conf")
    wait_until(lambda: clean.health_record().get("state") == "down", "a failed check")
    latest = clean.health_record()
    assert "qwen35 was killed at" in latest["why"] and "to save the host" in latest["why"]
    assert latest["cure"] == "restart"
    assert clean.on("spark1", "docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' qwen35") == "exited 137"
    assert "stopped to save the host" in clean.run("history", "--host", "spark1").out
    assert_uninstalls_without_a_trace(clean)
