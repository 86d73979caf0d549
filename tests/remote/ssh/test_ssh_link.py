"""Connecting to a host over a real sshd: configurations, refused keys, and lost connections."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparkwright import host_side
from sparkwright.app.setup import dialog
from sparkwright.app.setup.proposal import NewHost
from sparkwright.errors import Refused, Unreachable
from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from sparkwright.remote.ssh import connection, ssh_config
from sparkwright.remote.ssh import ssh_link as ssh
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote.conftest import SshLab, command_task, pack_runtime, run_request
from tests.remote.sshd import Sshd
from tests.waiting import wait_until

#: tests that start with a host without a runtime
UPLOAD_TESTS = (
    "test_host_without_python_is_refused", "test_runtime_is_uploaded_once", "test_error_of_an_uploaded_runtime_is_quoted",
    "test_connection_lost_during_the_upload_is_reported_without_a_run",
)  # fmt: skip


def send_request(lab: SshLab, header: dict[str, Any], **host: Any) -> list[Event]:
    with closing(SshLink(lab.host(**host))) as link:
        return list(link.request(header, {}))


def assert_run_succeeds(lab: SshLab, **host: Any) -> None:
    assert send_request(lab, run_request(command_task("true")), **host)[-1]["exit"] == 0


def write_jumps(lab: SshLab, *jumps: Sshd, proxy: str = "ProxyJump {}") -> None:
    """Configure `far`, an alias of the host, which is reached through jump hosts, each through the previous one."""
    text, previous = "", ""
    for alias, sshd in [*zip(("hop", "middle"), jumps, strict=False), ("far", lab.sshd)]:
        text += f"Host {alias}\n  HostName 127.0.0.1\n  Port {sshd.port}\n{previous}"
        previous = f"  {proxy.format(alias)}\n"
    lab.write_config(text)


def connection_error(lab: SshLab, **host: Any) -> str:
    with pytest.raises(Unreachable) as caught:
        send_request(lab, {"verb": "runs"}, **host)
    return str(caught.value)


@pytest.fixture(scope="module", autouse=True)
def short_waits() -> Any:
    patch = pytest.MonkeyPatch()
    for module in (ssh, connection):
        for name in ("CONNECT_TIMEOUT_S", "CHANNEL_TIMEOUT_S", "SILENCE_TIMEOUT_S"):
            patch.setattr(module, name, 4.0, raising=hasattr(module, name))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime as it was first uploaded."""
    return tmp_path_factory.mktemp("kept") / "runtime"


@pytest.fixture(autouse=True)
def shipped(lab: SshLab, kept: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the runtime on the host for tests that are not about it, because unpacking takes two seconds of CPU time."""
    target = lab.sshd.home / ".local/share/sparkwright/runtime"
    uploads_itself = request.node.originalname in UPLOAD_TESTS
    if kept.exists() and not uploads_itself:
        shutil.copytree(kept, target, symlinks=True, copy_function=_copy_runtime)
        for folder in (target, *target.parents[:3]):
            folder.chmod(0o700)
    yield
    if not kept.exists() and not uploads_itself and target.exists():
        shutil.copytree(target, kept, symlinks=True, copy_function=_copy_runtime)


def _copy_runtime(source: str, target: str) -> None:
    """Link the libraries, and copy the files that are locked or written to."""
    (os.link if "/lib/" in source else shutil.copy2)(source, target)


def test_run_on_a_host_returns_events(lab: SshLab) -> None:
    events = send_request(lab, run_request(command_task("printenv", "HOME")))
    finished = next(event for event in events if event["event"] == "task_finished")
    assert finished["data"]["out"] == str(lab.sshd.home)
    assert events[-1]["event"] == "recap"
    assert events[-1]["exit"] == 0


def test_runtime_is_uploaded_once(lab: SshLab) -> None:
    first, second = send_request(lab, {"verb": "runs"}), send_request(lab, {"verb": "runs"})
    assert any("uploading" in item.get("text", "") for item in first)
    assert [item["event"] for item in second] == ["note"], "no runs yet"


@pytest.mark.parametrize(
    ("count", "proxy"),
    [(1, "ProxyJump {}"), (2, "ProxyJump {}"), (1, "ProxyCommand ssh -W %h:%p {} 2>/dev/null")],
    ids=["a jump host", "two jump hosts", "ProxyCommand"],
)
def test_connection_goes_through_jump_hosts(lab: SshLab, count: int, proxy: str) -> None:
    jumps = [lab.start_sshd(f"jump{n}") for n in range(count)]
    write_jumps(lab, *jumps, proxy=proxy)
    assert_run_succeeds(lab, address="far", port=None)
    for jump in jumps:
        assert "Accepted publickey" in (jump.folder / "log").read_text()


#: ProxyCommand that exits after it has sent $2 bytes to port $1
CUT_PROXY = """
import os, socket, sys, threading
connection, left = socket.create_connection(("127.0.0.1", int(sys.argv[1]))), int(sys.argv[2])
def receive():
    while data := connection.recv(65536):
        os.write(1, data)
threading.Thread(target=receive, daemon=True).start()
while left > 0 and (data := os.read(0, 4096)):
    connection.sendall(data)
    left -= len(data)
os._exit(1)
"""


def test_connection_lost_during_the_upload_is_reported_without_a_run(lab: SshLab, small_runtime: Path) -> None:
    program = lab.folder / "proxy.py"
    program.write_text(CUT_PROXY)
    sent_bytes = small_runtime.stat().st_size // 2
    lab.write_config(f"Host 127.0.0.1\n  ProxyCommand {sys.executable} {program} {lab.sshd.port} {sent_bytes}\n")
    with (
        closing(SshLink(lab.host(), "light")) as link,
        pytest.raises(Unreachable, match="connection was lost") as error,
    ):
        list(link.request({"verb": "runs"}, {}))
    assert "no run was started on the host" in error.value.fix
    lab.write_config("")
    with closing(SshLink(lab.host(), "light")) as link:
        assert any("uploading" in item.get("text", "") for item in link.request({"verb": "runs"}, {}))


def test_unknown_host_key_is_refused_with_the_remedy(lab: SshLab) -> None:
    lab.known_hosts.write_text("")
    result = connection_error(lab)
    assert "is not known yet: SHA256:" in result
    assert f"`ssh -p {lab.sshd.port} root@127.0.0.1`" in result
    assert lab.known_hosts.read_text() == ""


def test_changed_host_key_is_refused_with_the_remedy(lab: SshLab) -> None:
    lab.sshd.stop()
    lab.sshd.new_host_key()
    lab.sshd.start()
    result = connection_error(lab)
    assert "is not the known one" in result
    assert f"ssh-keygen -R '[127.0.0.1]:{lab.sshd.port}'" in result


def test_accept_new_adds_the_key_and_reports_it(lab: SshLab) -> None:
    lab.known_hosts.write_text("# mine, without a newline at the end")
    lab.write_config("Host 127.0.0.1\n  StrictHostKeyChecking accept-new\n")
    notes = [item["text"] for item in send_request(lab, {"verb": "runs"}) if item["event"] == "note"]
    assert f"the new key of [127.0.0.1]:{lab.sshd.port} was added to {lab.known_hosts}" in notes[0]
    assert lab.known_hosts.read_text().splitlines()[1] + "\n" == lab.sshd.known_hosts_line()


def test_certificate_authority_does_not_count_as_the_key(lab: SshLab) -> None:
    lab.known_hosts.write_text(f"@cert-authority {lab.sshd.known_hosts_line()}")
    result = connection_error(lab)
    assert "Host certificates are not checked here." in result
    assert f"`ssh-keyscan -p {lab.sshd.port} 127.0.0.1 >> {lab.known_hosts}`" in result


def test_jump_host_for_all_hosts_is_reached_directly(lab: SshLab) -> None:
    jump = lab.start_sshd("jump")
    lab.write_config(
        f"Host hop\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        f"Host far\n  HostName 127.0.0.1\n  Port {lab.sshd.port}\nHost *\n  ProxyJump hop\n"
    )
    assert_run_succeeds(lab, address="far", port=None)


def test_remedy_for_a_key_behind_a_jump_host_names_the_alias(lab: SshLab) -> None:
    jump = lab.start_sshd("jump")
    lab.known_hosts.write_text(jump.known_hosts_line())
    write_jumps(lab, jump)
    assert f"`ssh -p {lab.sshd.port} root@far`" in connection_error(lab, address="far", port=None)


def test_encrypted_key_without_an_agent_names_the_remedy(lab: SshLab) -> None:
    command = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret phrase", "-f", str(lab.folder / "id")]
    subprocess.run(command, check=True, capture_output=True)
    assert "the key has a passphrase and is not in an agent. Add it to your agent: `ssh-add`." in connection_error(lab)


def test_error_of_an_uploaded_runtime_is_quoted(
    lab: SshLab, monkeypatch: pytest.MonkeyPatch, small_runtime: Path
) -> None:
    sources = dict(host_side.iter_sources())
    sources["runner/status.py"] = b"raise RuntimeError('the disk is odd')\n"
    monkeypatch.setattr(host_side, "iter_sources", lambda: list(sources.items()))
    pack_runtime(small_runtime)
    with (
        closing(SshLink(lab.host(), "light")) as link,
        pytest.raises(Refused, match="was uploaded but does not start: RuntimeError: the disk is odd"),
    ):
        list(link.request({"verb": "runs"}, {}))


def test_rejected_key_is_named(lab: SshLab) -> None:
    (lab.sshd.folder / "authorized_keys").write_text("")
    result = connection_error(lab)
    assert f"rejected every key: the agent's keys and {lab.folder}/id" in result


def test_init_shows_how_to_copy_a_key_to_a_host_that_rejects_every_key(
    lab: SshLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.sshd.folder / "authorized_keys").write_text("")
    monkeypatch.setattr("builtins.input", lambda question="": "n")
    host = NewHost("spark1", "127.0.0.1", port=lab.sshd.port)
    with pytest.raises(Unreachable, match="nothing was written"):
        dialog.log_in_and_survey(host, [], interactive=True)
    assert f"ssh-copy-id -p {lab.sshd.port} 127.0.0.1" in capsys.readouterr().out


def test_closed_port_and_unknown_name_have_different_messages(lab: SshLab) -> None:
    lab.sshd.stop()
    assert "refuses connections" in connection_error(lab)
    assert "cannot resolve nowhere.invalid" in connection_error(lab, address="nowhere.invalid")


def test_frozen_sshd_is_unreachable_at_the_deadline(lab: SshLab) -> None:
    lab.sshd.signal(signal.SIGSTOP)
    assert "did not answer within 4 s" in connection_error(lab)


def test_frozen_session_is_unreachable_and_names_attach(lab: SshLab) -> None:
    link = SshLink(lab.host())
    events = link.request(run_request(command_task("sleep", "60")), {})
    with pytest.raises(Unreachable, match="silent for 4 s.*invoke attach --host spark1"):
        for event in events:
            if event["event"] == "task_started":
                lab.sshd.signal(signal.SIGSTOP)
    lab.sshd.signal(signal.SIGCONT)
    link.close()


def test_opening_a_channel_of_a_frozen_session_times_out(lab: SshLab) -> None:
    link = SshLink(lab.host())
    list(link.request({"verb": "runs"}, {}))
    lab.sshd.signal(signal.SIGSTOP)
    with pytest.raises(Unreachable, match="no channel within 4 s"):
        list(link.request({"verb": "runs"}, {}))
    lab.sshd.signal(signal.SIGCONT)
    link.close()


def test_runner_without_a_request_exits_with_the_connection(lab: SshLab) -> None:
    send_request(lab, {"verb": "runs"})
    link = SshLink(lab.host())
    running = ["pgrep", "-f", str(lab.sshd.home / ".local/share/sparkwright/runtime")]
    wait_until(lambda: subprocess.run(running, capture_output=True, check=False).stdout)
    link.close()
    wait_until(lambda: not subprocess.run(running, capture_output=True, check=False).stdout)


def test_run_survives_its_connection_and_can_be_attached(lab: SshLab) -> None:
    go = lab.folder / "go"
    slow = command_task("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; echo survived")
    link = SshLink(lab.host())
    with pytest.raises(Unreachable, match="invoke attach --host spark1"):
        for item in link.request(run_request(slow), {}):
            if item["event"] == "task_started":
                for pid in lab.sshd.sessions():
                    os.kill(pid, signal.SIGKILL)
    link.close()
    go.touch()
    events = send_request(lab, {"verb": "attach", "run": "run-1"})
    assert [event["data"]["out"] for event in events if event["event"] == "task_finished"] == ["survived"]
    assert events[-1]["exit"] == 0


def test_second_run_is_refused_with_the_owner_of_the_lock(lab: SshLab) -> None:
    go = lab.folder / "go"
    slow = command_task("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done")
    link = SshLink(lab.host())
    for item in link.request(run_request(slow, who="ann@desk"), {}):
        if item["event"] == "task_started":
            other = send_request(lab, run_request(command_task("true"), run_id="run-2"))
            go.touch()
    assert other[-1]["exit"] == 5
    assert "spark1 is locked: Test by ann@desk, since" in other[-1]["msg"]
    link.close()


def test_host_without_python_is_refused(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_START_SCRIPT", runtime._START_SCRIPT.replace("python3", "nopython3"))
    with pytest.raises(Refused, match="no Python 3.11 or newer"):
        send_request(lab, {"verb": "runs"})


def test_target_is_the_one_that_ssh_resolves(lab: SshLab) -> None:
    lab.write_config(
        "Host a*\n  Port 2200\n  User ann\nMatch host abc\n  HostName abc.example.org\n  ProxyJump x,y:23\n"
    )
    target = ssh_config.resolve(lab.host(address="abc", port=None))
    assert (target.hostname, target.user, target.port, target.jump) == ("abc.example.org", "ann", 2200, ("x", "y:23"))
