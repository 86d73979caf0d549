"""The modules systemd_unit and package on a host with systemd and apt."""

import pytest
import yaml

from tests.bed.conftest import BedProject, CommandResult

UNIT = "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"

#: makes a repository with a package the only source of apt
REPOSITORY = r"""
set -e
sudo mkdir -p /srv/apt/probe/DEBIAN && cd /srv/apt
printf 'Package: sparkwright-probe\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: probe\n' |
  sudo tee probe/DEBIAN/control > /dev/null
sudo dpkg-deb --build probe probe.deb > /dev/null
{ cat probe/DEBIAN/control; echo "Filename: ./probe.deb"; echo "Size: $(stat -c %s probe.deb)";
  echo "SHA256: $(sha256sum probe.deb | cut -d' ' -f1)"; } | sudo tee Packages > /dev/null
echo 'deb [trusted=yes] file:/srv/apt ./' | sudo tee /etc/apt/sources.list.d/probe.list > /dev/null
for other in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
  if [ -e $other ]; then sudo mv $other $other.aside; fi; done
sudo apt-get purge -y -q sparkwright-probe > /dev/null 2>&1 || true
sudo rm -rf /var/lib/apt/lists/*
echo laid
"""


def run_tasks(lab: BedProject, *tasks: dict[str, object]) -> CommandResult:
    path = lab.root / "playbooks/tasks.yml"
    path.write_text(yaml.safe_dump([{"name": "Tasks", "hosts": "all", "tasks": list(tasks)}]))
    return lab.run("play", "tasks", "--host", "spark1", "--json")


def unit_task(**args: object) -> dict[str, object]:
    return {"name": "Unit", "systemd_unit": {"name": "probe.service", **args}, "become": True}


def package_task(name: str, **args: object) -> dict[str, object]:
    return {"name": "Package", "package": {"name": name, **args}, "become": True}


@pytest.fixture
def no_unit(lab: BedProject) -> BedProject:
    lab.on("spark1", "sudo systemctl disable --now probe; sudo rm -f /etc/systemd/system/probe.service")
    lab.on("spark1", "sudo systemctl daemon-reload")
    return lab


def test_unit_is_written_enabled_and_started_once(no_unit: BedProject) -> None:
    def query_unit() -> list[str]:
        command = "systemctl is-active probe; systemctl is-enabled probe; systemctl show -p ExecMainPID --value probe"
        return no_unit.on("spark1", command).split()

    task = unit_task(content=UNIT, state="started", enabled=True)
    first = run_tasks(no_unit, task)
    assert (first.code, first.recap["changed"]) == (0, 1), first.out
    started = query_unit()
    assert started[:2] == ["active", "enabled"]
    assert run_tasks(no_unit, task).recap["changed"] == 0
    assert query_unit() == started
    assert run_tasks(no_unit, unit_task(state="stopped", enabled=False)).recap["changed"] == 1
    assert query_unit()[:2] == ["inactive", "disabled"]


def test_unit_that_fails_to_start_names_the_journal(no_unit: BedProject) -> None:
    result = run_tasks(no_unit, unit_task(content=UNIT.replace("/bin/sleep", "/no/such"), state="started"))
    assert result.code == 1
    assert "journalctl -u probe.service" in result.out


def test_unit_without_become_is_refused(no_unit: BedProject) -> None:
    refused = run_tasks(no_unit, {"name": "Unit", "systemd_unit": {"name": "cron.service", "state": "restarted"}})
    assert refused.code == 1
    assert "become: true" in refused.out


def test_package_is_installed_once_and_removed(lab: BedProject) -> None:
    query_package = "dpkg-query -W -f '${db:Status-Status}' sparkwright-probe"
    assert lab.on("spark1", REPOSITORY).endswith("laid")
    first = run_tasks(lab, package_task("sparkwright-probe"))
    assert (first.code, first.recap["changed"]) == (0, 1), first.out
    assert lab.on("spark1", query_package) == "installed"
    assert run_tasks(lab, package_task("sparkwright-probe")).recap["changed"] == 0
    assert run_tasks(lab, package_task("sparkwright-probe", state="absent")).recap["changed"] == 1
    assert lab.on("spark1", query_package) in ("", "not-installed")
    unknown = run_tasks(lab, package_task("no-such-package"))
    assert (unknown.code, "no-such-package" in unknown.recap["msg"]) == (1, True)


def test_driver_packages_are_refused(lab: BedProject) -> None:
    refused = run_tasks(lab, package_task("nvidia-driver-580"))
    assert refused.code == 5
    assert "DGX Dashboard" in refused.out
