"""Unusual accounts over a real sshd: login shells, rc files that print or exit, homes that are missing, full or read-only."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused, Unreachable
from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from sparkwright.remote.ssh import ssh_link as ssh
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.secret import Secret
from tests.remote.conftest import SshLab, command_task, mount_tmpfs, run_request
from tests.remote.sshd import Sshd

pytestmark = pytest.mark.usefixtures("small_runtime")


class Account:
    """A user of this machine and an sshd for it."""

    def __init__(self, lab: SshLab, name: str, keys: Path) -> None:
        self.lab, self.name, self.keys = lab, name, keys
        self.home = Path(pwd.getpwnam(name).pw_dir)
        first = f"AuthorizedKeysFile {keys}/authorized_keys\nSetEnv SPARKWRIGHT_TEST=1\n"
        self.sshd = Sshd(lab.folder / "theirs", lab.folder / "unused", first=first)
        lab.started.append(self.sshd)
        self.sshd.start()
        shutil.copy(lab.folder / "id.pub", keys / "authorized_keys")
        (keys / "authorized_keys").chmod(0o644)
        lab.trust(self.sshd)

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.write_text(text)
        shutil.chown(path, self.name)

    def shell(self, path: str) -> None:
        subprocess.run(["usermod", "-s", path, self.name], check=True)

    def cut(self) -> None:
        """Kill the processes of its connections: for a user other than root, a monitor and its child."""
        parents = self.sshd.sessions()
        command = ["pgrep", "-x", "sshd", "-P", ",".join(map(str, parents))]
        children = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        for pid in [*map(int, children), *parents]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def link(self) -> SshLink:
        return SshLink(self.lab.host(port=self.sshd.port, user=self.name), "light")

    def query(self, header: dict[str, Any] | None = None, secrets: dict[str, Secret] | None = None) -> list[Event]:
        with contextlib.closing(self.link()) as link:
            return list(link.request(header or {"verb": "runs"}, secrets or {}))

    def printed_home(self) -> tuple[str, list[Event]]:
        """Return the HOME that a run prints, and the run's events."""
        events = self.query(run_request(command_task("printenv", "HOME")))
        (finished,) = [event for event in events if event["event"] == "task_finished"]
        return finished["data"]["out"], events


@pytest.fixture
def account(lab: SshLab) -> Iterator[Account]:
    if not shutil.which("useradd"):
        pytest.skip("no useradd here (Debian: passwd)")
    name = f"sparktest{os.getpid()}"
    keys = Path(tempfile.mkdtemp(prefix="sparkwright-keys-"))
    keys.chmod(0o755)
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", name], check=True)
    try:
        yield Account(lab, name, keys)
    finally:
        for item in lab.started:
            item.stop()
        subprocess.run(["userdel", "--force", "--remove", name], capture_output=True, check=False)
        shutil.rmtree(keys)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "SILENCE_TIMEOUT_S", 8.0)


def test_output_of_an_rc_file_does_not_hide_events(account: Account) -> None:
    noisy = (
        "echo welcome; echo oops >&2; stty sane; printf '{\"event\": \"recap\"'; trap 'echo bye' EXIT; printf tail\n"
    )
    account.write(".bashrc", noisy)
    home, events = account.printed_home()
    assert (home, events[-1]["exit"]) == (str(account.home), 0)
    raw_text = "".join(event["text"] for event in events if event["event"] == "raw")
    assert "welcome" in raw_text and "bye" not in raw_text
    assert not [event for event in account.query() if event["event"] == "progress"], "the runtime is installed"


@pytest.mark.parametrize("shell", ["/usr/bin/fish", "/usr/bin/tcsh", "/usr/bin/zsh", "/bin/sh"])
def test_login_shells(account: Account, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell} here")
    account.shell(shell)
    account.write(".cshrc", "echo csh is here\n")
    account.write(".zshenv", "echo zsh is here\n")
    assert account.printed_home()[0] == str(account.home)
    assert account.query()[-1]["event"] == "run"


@pytest.mark.parametrize(
    ("rc", "reason"),
    [
        ("echo go away; exit 0\n", "but printed: go away."),
        ("set -e; false\n", ""),
        ("exit 7\n", ""),
        ("exec true\n", ""),
    ],
)
def test_rc_file_that_exits_is_refused_with_its_output(account: Account, rc: str, reason: str) -> None:
    account.write(".bashrc", rc)
    with pytest.raises(Refused, match="the login shell did not run the command") as caught:
        account.query()
    assert reason in str(caught.value)
    assert f"`ssh -p {account.sshd.port} {account.name}@127.0.0.1 true` must exit with 0" in str(caught.value)


def test_message_of_nologin_is_quoted(account: Account) -> None:
    account.shell("/usr/sbin/nologin")
    with pytest.raises(Refused, match=r"but printed: This account is currently not available\. "):
        account.query()


def test_program_started_by_an_rc_file_gets_no_request(account: Account) -> None:
    account.write(".bashrc", f"exec sh -c 'cat > {account.home}/heard'\n")
    with pytest.raises(Unreachable, match="silent for 8 s") as caught:
        account.query(run_request(command_task("true")), {"HF_TOKEN": Secret("hf_secretsecret")})
    assert "No run was started on the host." in str(caught.value)
    assert (account.home / "heard").read_bytes() == b""


def remove_home(account: Account) -> None:
    shutil.rmtree(account.home)


def give_home_to_root(account: Account) -> None:
    os.chown(account.home, 0, 0)
    account.home.chmod(0o755)


def assert_no_runtime_fits(account: Account, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        account.query()
    assert "cannot install the runtime on the host: " in str(caught.value)
    assert str(account.home) in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("damage", [remove_home, give_home_to_root])
def test_unwritable_home_is_refused_with_the_reason(account: Account, damage: Callable[[Account], None]) -> None:
    damage(account)
    assert_no_runtime_fits(account, "Permission denied")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("ro", "Read-only file system"),
        ("size=400k", r"No space left on device|not enough space: needs \d+ MB, 0 MB free"),
    ],
)
def test_read_only_or_tiny_home_is_refused_with_the_reason(account: Account, options: str, reason: str) -> None:
    with mount_tmpfs(account.home, f"{options},uid={pwd.getpwnam(account.name).pw_uid}"):
        assert_no_runtime_fits(account, reason)


def test_full_or_read_only_home_answers_queries_but_starts_no_run(account: Account) -> None:
    with mount_tmpfs(account.home, f"size=64m,uid={pwd.getpwnam(account.name).pw_uid}"):
        account.query()
        with pytest.raises(OSError, match="No space"), (account.home / "everything").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        recap = account.query(run_request(command_task("true")))[-1]
        assert (recap["event"], recap["exit"]) == ("recap", 1)
        assert "run not started" in recap["msg"] and "No space left on device" in recap["msg"]
        assert account.query({"verb": "status", "container": ""})[-1]["event"] == "status"
        (account.home / "everything").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(account.home)], check=True)
        recap = account.query(run_request(command_task("true")))[-1]
        assert recap["exit"] == 1 and "Read-only file system" in recap["msg"]
        assert account.query({"verb": "status", "container": ""})[-1]["event"] == "status"


def test_interrupted_upload_leaves_nothing_and_the_next_succeeds(account: Account) -> None:
    with contextlib.closing(account.link()) as link, pytest.raises(Unreachable):
        for event in link.request({"verb": "runs"}, {}):
            if event["event"] == "progress" and event["done"] < event["total"]:
                account.cut()
    kinds = [event["event"] for event in account.query({"verb": "runs"})]
    assert "progress" in kinds and kinds[-1] == "note", "uploaded again, and answered: no runs yet"
    names = [path.name for path in (account.home / runtime.BOOTSTRAP_FOLDER).iterdir()]
    assert len([name for name in names if name[0] != "."]) == 1
