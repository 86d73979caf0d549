"""Settings of a host are shown, applied and undone exactly; files that the user has changed since are kept."""

import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.modules.system.host_settings import RECORD_FILE, HostSettings
from sparkwright.modules.system.services import UNIT_NAME_PATTERN, SystemdUnit
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext

EARLYOOM = 'EARLYOOM_ARGS="-r 3600"\n# more\n'
ALL: dict[str, Any] = {
    "clock_cap_mhz": 2000,
    "swappiness": 10,
    "earlyoom_percent": 2,
    "ollama_limits": {"max_loaded_models": 1, "num_parallel": 2, "context_length": 32768},
}


class FakeHost:
    """A host in a folder, with a systemctl and a sysctl that record their arguments."""

    def __init__(self, folder: Path) -> None:
        self.home, self.root, self.calls = folder / "home", folder / "root", folder / "calls"
        programs = folder / "bin"
        for item in (self.home, self.root / "etc/default", self.root / "proc/sys/vm", programs):
            item.mkdir(parents=True)
        for name in ("systemctl", "sysctl"):
            (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n')
            (programs / name).chmod(0o755)
        with (programs / "sysctl").open("a") as script:
            script.write(f'echo "${{2#*=}}" > {self.root}/proc/sys/vm/swappiness\n')
        self.env = {"PATH": f"{programs}:{os.environ['PATH']}"}
        self.earlyoom.write_text(EARLYOOM)
        (self.root / "proc/sys/vm/swappiness").write_text("60\n")

    def run(self, *, check: bool = False, **arguments: Any) -> Result:
        context = RecordingContext(self.home, check=check, root=str(self.root), env=self.env)
        return HostSettings().run(HostSettings.Args(**arguments), context)

    def files(self) -> dict[str, str]:
        paths = [path for path in (self.root / "etc").rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_text() for path in paths}

    @property
    def record(self) -> Path:
        return Path(f"{self.root}{RECORD_FILE}")

    @property
    def earlyoom(self) -> Path:
        return self.root / "etc/default/earlyoom"

    @property
    def commands(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_dry_run_shows_each_setting_and_changes_nothing(host: FakeHost) -> None:
    before = host.files()
    shown = {item.field: (item.before, item.after) for item in host.run(check=True, **ALL).diff}
    assert shown["clock cap"] == (None, "2000 MHz")
    assert shown["swappiness"] == ("60", "10")
    assert shown["earlyoom"] == ('EARLYOOM_ARGS="-r 3600"', 'EARLYOOM_ARGS="-m 2"')
    assert set(shown) == {"clock cap", "swappiness", "earlyoom", "Ollama's limits"}
    assert (host.files(), host.commands) == (before, [])
    assert not host.record.exists()


def test_settings_are_applied_once_and_undone_exactly(host: FakeHost) -> None:
    before = host.files()
    assert host.run(**ALL).changed
    assert "-lgc 0,2000" in host.files()["etc/systemd/system/sparkwright-clock-cap.service"]
    ollama_unit = host.files()["etc/systemd/system/ollama.service.d/60-sparkwright.conf"]
    assert 'Environment="OLLAMA_NUM_PARALLEL=2"' in ollama_unit and "OLLAMA_CONTEXT_LENGTH=32768" in ollama_unit
    assert host.files()["etc/default/earlyoom"] == 'EARLYOOM_ARGS="-m 2"\n# more\n'
    assert "sysctl -w vm.swappiness=10" in host.commands
    assert not host.run(**ALL).changed
    host.run(**{**ALL, "clock_cap_mhz": 1800, "earlyoom_percent": 3})
    command_count = len(host.commands)
    assert host.run(undo=True).changed
    assert host.files() == before
    assert "sysctl -w vm.swappiness=60" in host.commands[command_count:]
    assert "systemctl disable --now sparkwright-clock-cap.service" in host.commands[command_count:]
    assert not host.record.parent.exists()
    assert not (host.root / "etc/systemd/system/ollama.service.d").exists()
    assert not host.run(undo=True).changed


def test_unchanged_settings_are_undone_despite_a_changed_file(host: FakeHost) -> None:
    before = host.files()
    host.run(**ALL)
    host.earlyoom.write_text('EARLYOOM_ARGS="-m 7"\n')
    (host.root / "etc/systemd/system/sparkwright-clock-cap.service").unlink()
    with pytest.raises(Failed, match="/etc/default/earlyoom has been changed since"):  # not Refused: it restored others
        host.run(undo=True)
    assert host.files() == {**before, "etc/default/earlyoom": 'EARLYOOM_ARGS="-m 7"\n'}
    host.earlyoom.write_text('EARLYOOM_ARGS="-m 2"\n# more\n')
    assert host.run(undo=True).changed and host.files() == before


def test_run_killed_before_writing_is_undone(host: FakeHost) -> None:
    before = host.files()
    host.run(earlyoom_percent=2)
    host.record.write_text(host.record.read_text().replace("true", "false"))
    host.earlyoom.write_text(EARLYOOM)
    assert host.run(undo=True).changed and host.files() == before


def test_file_that_cannot_be_restored_is_not_changed(host: FakeHost) -> None:
    host.earlyoom.write_bytes(b'EARLYOOM_ARGS="-r 3600" # \xff\n')
    with pytest.raises(Refused, match="not a UTF-8 text file"):
        host.run(earlyoom_percent=2)
    assert host.earlyoom.read_bytes().endswith(b"\xff\n")


def test_program_that_is_not_installed_is_not_configured(host: FakeHost) -> None:
    host.earlyoom.unlink()
    before = host.files()
    for check in (True, False):
        with pytest.raises(Failed, match="earlyoom is missing") as excinfo:
            host.run(check=check, **ALL)
        assert "apt install earlyoom" in excinfo.value.fix
    assert (host.files(), host.commands) == (before, [])


OVERRIDES = [
    ("etc/systemd/system/ollama.service.d/override.conf", '[Service]\nEnvironment="OLLAMA_NUM_PARALLEL={}"\n'),
    ("etc/systemd/system/ollama.service.d/override.conf", "[Service]\nEnvironment=A=1 OLLAMA_NUM_PARALLEL={}\n"),
    ("etc/sysctl.d/99-sysctl.conf", "# by hand\nvm.swappiness={}\n"),
    ("usr/lib/sysctl.d/99-vendor.conf", "# the vendor's\nvm.swappiness={}\n"),
    ("run/systemd/system/ollama.service.d/70.conf", '[Service]\nEnvironment="OLLAMA_NUM_PARALLEL={}"\n'),
]


@pytest.mark.parametrize(("path", "text"), OVERRIDES)
def test_setting_that_another_file_overrides_is_refused(host: FakeHost, path: str, text: str) -> None:
    file = host.root / path
    file.parent.mkdir(parents=True)
    file.write_text(text.format(7))
    before = host.files()
    for check in (True, False):
        with pytest.raises(Refused, match=f"^/{path}:2 says `.*7"):
            host.run(check=check, **ALL)
    assert (host.files(), host.commands) == (before, [])
    same_values: dict[str, Any] = {"swappiness": 7, "ollama_limits": {"num_parallel": 7}}
    assert host.run(**same_values).changed and not host.run(**same_values).changed
    file.write_text("#" + text.format(8).replace("\n", "\n# "))
    assert host.run(**ALL).changed
    file.write_text(text.format(8))
    assert host.run(undo=True).changed


def test_setting_is_applied_if_the_last_file_that_sets_it_agrees(host: FakeHost) -> None:
    for name, text in (
        ("etc/sysctl.d/70-x.conf", "vm.swappiness=7\n"),
        ("etc/sysctl.d/80-x.conf", "vm.swappiness=7\nvm.swappiness=10\n"),
        ("usr/lib/sysctl.d/90-x.conf", "vm.swappiness=7\n"),
        ("etc/sysctl.d/90-x.conf", ""),
    ):
        path = host.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert host.run(swappiness=10).changed
    assert (host.root / "etc/sysctl.d/60-sparkwright.conf").exists()


def test_kernel_setting_changed_since_is_applied_again(host: FakeHost) -> None:
    host.run(swappiness=10)
    (host.root / "proc/sys/vm/swappiness").write_text("60\n")
    assert host.run(swappiness=10).changed
    assert not host.run(swappiness=10).changed


@pytest.mark.parametrize(
    "arguments",
    [
        {"clock_cap_mhz": 50},
        {"clock_cap_mhz": 1500},  # not distinguishable from a stuck GPU
        {"clock_cap_mhz": True},
        {"swappiness": 201},
        {"earlyoom_percent": 80},
        {"ollama_limits": {"models": 1}},
        {"ollama_limits": {"keep_alive": '5m"\nExecStart=x'}},
    ],
)
def test_invalid_values_are_refused(host: FakeHost, arguments: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        host.run(**arguments)
    assert host.commands == []


def test_damaged_record_is_refused(host: FakeHost) -> None:
    host.run(swappiness=10)
    host.record.write_text("{")
    with pytest.raises(Refused, match="is damaged"):
        host.run(undo=True)


def test_file_changed_since_is_shown_as_a_difference(host: FakeHost) -> None:
    host.run(swappiness=10)
    with (host.root / "etc/sysctl.d/60-sparkwright.conf").open("a") as file:
        file.write("# mine\n")
    shown = host.run(check=True, swappiness=10).diff
    assert [(item.before, item.after) for item in shown] == [("10 (its file differs)", "10")]


def test_error_begins_with_the_first_line_of_a_failed_command(host: FakeHost) -> None:
    line = "Job for sparkwright-clock-cap.service failed because the control process exited with error code."
    program = Path(host.env["PATH"].partition(":")[0]) / "sysctl"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' '{line}' 'See systemctl status and journalctl -xeu. {'x' * 120}' >&2; exit 1\n"
    )
    with pytest.raises(Failed) as excinfo:
        host.run(swappiness=10)
    assert str(excinfo.value) == f"`sysctl -w vm.swappiness=10` failed: {line}"


def test_failed_command_is_repeated_by_the_next_run(host: FakeHost) -> None:
    program = Path(host.env["PATH"].partition(":")[0]) / "sysctl"
    script = program.read_text()
    program.write_text("#!/bin/sh\necho no >&2; exit 1\n")
    with pytest.raises(Failed, match=r"vm\.swappiness=10"):
        host.run(swappiness=10)
    program.write_text(script)
    assert host.run(swappiness=10).changed
    assert host.commands == ["sysctl -w vm.swappiness=10"]
    assert not host.run(swappiness=10).changed


@pytest.mark.parametrize(
    "name", ["../../cron.d/x.service", "/etc/x.service", "a\nb.service", "ollama", "a b.service", ""]
)
def test_invalid_unit_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="is not a unit name"):
        SystemdUnit().run(SystemdUnit.Args(name=name, content="[Unit]\n"), RecordingContext(tmp_path))


@pytest.mark.parametrize(
    "name", ["ollama.service", "user@1000.service", "dev-sda1.swap", r"a\x2db.mount", "x:y_z.timer"]
)
def test_valid_unit_names_are_accepted(name: str) -> None:
    assert UNIT_NAME_PATTERN.fullmatch(name)
