"""`become` with the real sudo and a real user, in a session without a terminal as on a host."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sparkwright
from sparkwright.errors import Refused
from sparkwright.host import root_runtime
from sparkwright.host.machine import ROOT_PATH, Machine
from sparkwright.protocol.events import Event, decode
from sparkwright.protocol.plan import Plan, Task
from sparkwright.runner import become_server

TOP = Path(__file__).parent.parent.parent
#: the folder from which the package is imported
LIBRARY = Path(sparkwright.__file__).parents[1]
USER, PASSWORD, WRONG = "sparkwright-test", "correct horse battery", "wrong horse battery"
TOKEN = "hf_s3cretT0kenOfThisRun"
RULES_FILE = Path("/etc/sudoers.d/sparkwright-test")
WITH_PASSWORD, WITHOUT_PASSWORD = "ALL=(ALL) ALL", "ALL=(ALL) NOPASSWD: ALL"


def find_shared_python() -> str:
    """Return a Python that another user may run, with the runner's requirements."""
    program = "import sys; print(sys.version_info >= (3, 11))"
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["setpriv", "--reuid", USER, "--clear-groups", python, "-c", program]
        if subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "True":
            return python
    pytest.skip("no Python 3.11 that another user may run")


@dataclass
class Account:
    """A user of this machine. program_log: written by programs and libraries in the user's folder if they ran."""

    home: Path
    python: str
    program_log: Path

    def set_rule(self, rule: str, defaults: str = "") -> None:
        lines = [f"Defaults:{USER} {defaults}\n" if defaults else "", f"{USER} {rule}\n" if rule else ""]
        RULES_FILE.write_text("".join(lines))
        RULES_FILE.chmod(0o440)

    def request(self, header: dict[str, Any]) -> list[Event]:
        """Send a request to the runner as the user, in a new session with the user's PATH and PYTHONPATH."""
        env = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{TOP / 'src'}:{self.home}/lib",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", self.python]
        completed = subprocess.run(
            [*command, "-m", "sparkwright.runner.main"],
            input=json.dumps(header).encode() + b"\n",
            env=env,
            cwd=self.home,
            capture_output=True,
            start_new_session=True,
            timeout=100,
            check=False,
        )
        assert completed.stderr == b"", completed.stderr
        return [decode(line) for line in completed.stdout.splitlines()]

    def become(self, password: str = "", *argv: str) -> list[Event]:
        task = Task("t1", "Become root", "command", {"argv": list(argv or ("id", "-u"))}, become=True)
        secrets = {"HF_TOKEN": TOKEN, **({"BECOME_PASSWORD": password} if password else {})}
        run_id = f"r{len(list(self.home.glob('.local/state/sparkwright/runs/*')))}"
        plan = Plan(run_id, "spark1", "Test", (task,), who="a@b").to_json()
        return self.request({"verb": "run", "plan": plan, "secrets": secrets})

    def state(self) -> Path:
        return self.home / ".local/state/sparkwright"


@pytest.fixture
def account() -> Iterator[Account]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("sudo", "useradd", "chpasswd", "setpriv"))):
        pytest.skip("needs root and sudo, to create a user with a password")
    home = Path(tempfile.mkdtemp(prefix="sparkwright-sudo-"))
    subprocess.run(["userdel", "-f", USER], capture_output=True, check=False)
    subprocess.run(["useradd", "--home-dir", str(home), "--no-create-home", USER], check=True)
    subprocess.run(["chpasswd"], input=f"{USER}:{PASSWORD}\n", text=True, check=True)
    log = home / "ran"
    for name in ("systemctl", "id", "sudo"):
        program = home / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> {log}\ncat >> {log}\n")
        program.chmod(0o755)
    library = home / "lib/shlex.py"
    library.parent.mkdir()
    library.write_text(
        f"import os\nif os.geteuid() == 0: open({str(log)!r}, 'a').write('library')\nsplit = quote = join = str\n"
    )
    user = pwd.getpwnam(USER)
    for path in (home, *home.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)
    try:
        yield Account(home, find_shared_python(), log)
    finally:
        RULES_FILE.unlink(missing_ok=True)
        subprocess.run(["userdel", "-f", USER], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def trusted(account: Account) -> Account:
    """An account that needs no password."""
    account.set_rule(WITHOUT_PASSWORD)
    return account


def task_output(events: list[Event]) -> str:
    finished = next(event for event in events if event["event"] == "task_finished")
    return str(finished["data"].get("out", finished["msg"]))


@pytest.mark.parametrize(
    ("rule", "defaults", "password"),
    [
        (WITH_PASSWORD, "", PASSWORD),
        (WITH_PASSWORD, "timestamp_timeout=0", PASSWORD),
        (WITH_PASSWORD, "timestamp_type=tty", PASSWORD),
        (WITH_PASSWORD, "!lecture, passwd_tries=5", PASSWORD),
        (WITHOUT_PASSWORD, "", ""),
        (WITHOUT_PASSWORD, "", PASSWORD),
        (WITHOUT_PASSWORD, "", WRONG),
        ("ALL=(ALL) NOPASSWD: /usr/bin/id, PASSWD: ALL", "", PASSWORD),
    ],
)
def test_become_under_each_sudo_rule(account: Account, rule: str, defaults: str, password: str) -> None:
    account.set_rule(rule, defaults)
    result = account.become(password)
    assert (task_output(result), result[-1]["exit"]) == ("0", 0), result


def test_wrong_password_is_refused_and_releases_the_lock(account: Account) -> None:
    account.set_rule(WITH_PASSWORD)
    result = account.become(WRONG)
    assert result[-1]["msg"].startswith(
        f"sudo rejected the password for {USER} on spark1. Correct the secret BECOME_PASSWORD"
    )
    assert result[-1]["exit"] == 5
    assert (account.state() / "lock").read_text() == ""
    assert task_output(account.become(PASSWORD)) == "0"
    message = subprocess.run(["journalctl", "-q", "-t", "sudo"], capture_output=True, text=True, check=False).stdout
    files = [path for path in account.home.rglob("*") if path.is_file() and path.name != "ballast"]
    for text in (message, *(path.read_text(errors="replace") for path in files)):
        assert TOKEN not in text and WRONG not in text and PASSWORD not in text


@pytest.mark.parametrize(
    ("rule", "password", "sentence"),
    [
        (WITH_PASSWORD, "", f"sudo on spark1 needs a password for {USER}."),
        ("", PASSWORD, f"sudo on spark1 denied {USER}: Sorry, user {USER} may not run sudo on"),
        ("ALL=(ALL) /usr/bin/true", PASSWORD, f"sudo on spark1 denied {USER}: Sorry, user {USER} is not allowed to"),
        (WITH_PASSWORD, "two\nlines of it", "the secret BECOME_PASSWORD has more than one line."),
    ],
)
def test_refusal_by_sudo_is_reported(account: Account, rule: str, password: str, sentence: str) -> None:
    account.set_rule(rule)
    recap = account.become(password)[-1]
    assert recap["msg"].startswith(sentence)
    assert recap["exit"] == 5


def test_root_runs_no_program_or_library_of_the_user(account: Account) -> None:
    """No program of ~/bin, not even sudo, and no library of PYTHONPATH."""
    account.set_rule(WITH_PASSWORD)
    assert task_output(account.become(PASSWORD)) == "0"
    path = task_output(account.become(PASSWORD, "sh", "-c", "echo $PATH $PYTHONPATH"))
    assert path == ROOT_PATH
    account.become(PASSWORD, "systemctl", "is-enabled", "nothing")
    assert not account.program_log.exists(), account.program_log.read_text()


def test_machine_calls_only_the_systems_sudo(tmp_path: Path) -> None:
    (tmp_path / "sudo").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "sudo").chmod(0o755)
    machine = Machine(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    machine.run(["sudo", "-n", "true"])
    assert not (tmp_path / "ran").exists()


def test_root_has_a_safe_umask_and_the_state_belongs_to_the_user(trusted: Account) -> None:
    before = os.umask(0)
    try:
        result = trusted.become("", "sh", "-c", f"umask; touch {trusted.home}/created")
    finally:
        os.umask(before)
    assert task_output(result) == "0022"
    assert {path.stat().st_uid for path in trusted.state().rglob("*")} == {pwd.getpwnam(USER).pw_uid}


def test_programs_of_root_tasks_do_not_share_the_protocols_pipes(trusted: Account) -> None:
    result = trusted.become("", "sh", "-c", "cat; echo loud; echo louder >&2; echo > /proc/self/fd/1")
    assert task_output(result) == "loud"


@pytest.fixture
def victim(account: Account) -> Iterator[Path]:
    """A file of root on the same file system, like /etc/shadow."""
    folder = Path(tempfile.mkdtemp(prefix="sparkwright-victim-", dir=account.home.parent))
    folder.chmod(0o755)
    file = folder / "shadow"
    file.write_text("root:$6$hash\n")
    file.chmod(0o600)
    yield file
    shutil.rmtree(folder)


def give_to_user(path: Path) -> None:
    os.lchown(path, pwd.getpwnam(USER).pw_uid, -1)


@pytest.mark.parametrize("kind", ["hard link", "link", "link to its folder", "folder of the state"])
def test_become_gives_the_user_no_file_of_root(trusted: Account, victim: Path, kind: str) -> None:
    """Restoring owners by path would give /etc/shadow to the user, even without a race if the kernel allows hard links."""
    assert task_output(trusted.become()) == "0"
    trap = trusted.state() / "trap"
    if kind == "folder of the state":  # the runner can't write its journal there
        trusted.state().rename(trusted.state().with_name("away"))
        trusted.state().symlink_to(victim.parent)
        become_server.restore_owner(trusted.state(), pwd.getpwnam(USER).pw_uid, -1)
    else:
        if kind == "hard link":
            trap.hardlink_to(victim)
        else:
            trap.symlink_to(victim if kind == "link" else victim.parent)
            give_to_user(trap)
        assert task_output(trusted.become()) == "0"
    assert (victim.stat().st_uid, victim.parent.stat().st_uid) == (0, 0)


def test_folder_exchanged_for_a_link_is_not_followed(account: Account, victim: Path) -> None:
    """A race that the user can try with each task: a folder is exchanged for a link while root walks it."""
    state, uid = account.home / "state", pwd.getpwnam(USER).pw_uid
    folder, link = state / "folder", state / "link"
    folder.mkdir(parents=True)
    link.symlink_to(victim.parent)
    (folder / "shadow").write_text("mine")
    give_to_user(state)
    stop_requested = threading.Event()

    def exchange() -> None:
        away = state / "away"
        while not stop_requested.is_set():
            folder.rename(away)
            link.rename(folder)
            folder.rename(link)
            away.rename(folder)

    racing = threading.Thread(target=exchange)
    racing.start()
    for _ in range(500):
        become_server.restore_owner(state, uid, -1)
    stop_requested.set()
    racing.join()
    assert (victim.stat().st_uid, victim.parent.stat().st_uid) == (0, 0)
    become_server.restore_owner(state, uid, -1)
    assert {(folder / "shadow").stat().st_uid, folder.stat().st_uid} == {uid}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to create files of root")
def test_only_the_runtime_of_root_runs_as_root_if_installed() -> None:
    runtimes = Path(tempfile.mkdtemp(prefix="sparkwright-root-", dir="/opt"))
    runtimes.chmod(0o755)
    try:
        with pytest.raises(Refused, match="is not installed there. Run `invoke runtime.install`"):
            root_runtime.resolve_library(runtimes)
        lib = runtimes / LIBRARY.parent.name / "lib"
        shutil.copytree(TOP / "src/sparkwright", lib / "sparkwright", ignore=shutil.ignore_patterns("__pycache__"))
        if root_runtime.find_changeable(Path(sys.executable).resolve()):
            pytest.skip("this Python does not belong to root")
        assert root_runtime.resolve_library(runtimes) == lib
        (lib / "sparkwright").chmod(0o775)
        with pytest.raises(Refused, match=f"{lib}/sparkwright can be changed by users other than root"):
            root_runtime.resolve_library(runtimes)
        (lib / "sparkwright").chmod(0o755)
        os.chown(lib, 65534, -1)
        with pytest.raises(Refused, match=f"{lib} can be changed"):
            root_runtime.resolve_library(runtimes)
    finally:
        shutil.rmtree(runtimes)
    assert root_runtime.resolve_library(runtimes) == LIBRARY
