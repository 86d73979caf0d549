"""The same configurations for ssh and for sparkwright: both connect, or both refuse; a case that sparkwright alone refuses has its reason."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from sparkwright.errors import SparkwrightError
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote import conftest
from tests.remote.conftest import SshLab
from tests.remote.ssh_cases import CASES, Case
from tests.remote.sshd import Sshd

AGENT = "an agent"


class SshBench:
    """Two servers, a jump host, an agent, and the keys for the files of a case."""

    def __init__(self, lab: SshLab) -> None:
        self.lab, self.made, self.files = lab, lab.folder / "made", lab.folder / "files"
        self.made.mkdir()
        for name in ("other", "ca", "nobody", "held", "locked", "signed", "signed2", "expired"):
            self._key(name, "ed25519")
        self._key("ecdsa", "ecdsa")
        self._key("rsa", "rsa", "-b", "2048")
        shutil.copy(lab.folder / "id", self.made / "id")
        self._sign("signed", "a cert.pub")
        self._sign("signed2", "signed2-cert.pub")
        self._sign("expired", "expired-cert.pub", "-V", "20200101:20200102")
        self.agent = self._agent()
        self._passphrase("locked")
        lab.sshd.stop()
        self.servers = {name: self._server(name) for name in ("plain", "certified", "jump")}

    def _keygen(self, *arguments: str | Path) -> None:
        subprocess.run(["ssh-keygen", "-q", *arguments], check=True, capture_output=True)

    def _key(self, name: str, kind: str, *options: str) -> None:
        self._keygen("-t", kind, *options, "-N", "", "-C", "", "-f", self.made / name)

    def _sign(self, name: str, certificate: str, *options: str) -> None:
        self._keygen("-s", self.made / "ca", "-I", "me", "-n", "root", *options, self.made / name)
        (self.made / f"{name}-cert.pub").rename(self.made / certificate)

    def _passphrase(self, name: str) -> None:
        (self.made / f"{name}.pub").unlink()
        self._keygen("-p", "-P", "", "-N", "a phrase", "-f", self.made / name)

    def _agent(self) -> subprocess.Popen[str]:
        command = ["ssh-agent", "-D", "-a", str(self.made / AGENT)]
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert agent.stdout is not None
        agent.stdout.readline()  # it listens
        env = {**os.environ, "SSH_AUTH_SOCK": str(self.made / AGENT)}
        subprocess.run(["ssh-add", "-q", str(self.made / "held"), str(self.made / "locked")], env=env, check=True)
        return agent

    def _server(self, name: str) -> Sshd:
        value = Sshd(self.lab.folder / name, self.lab.folder / f"home-{name}")
        value.more = f"HostKey {self.made}/rsa\nTrustedUserCAKeys {self.made}/ca.pub\n"
        value.folder.mkdir()
        value.new_host_key()
        if name == "certified":
            self._keygen("-s", self.made / "ca", "-I", "host", "-h", "-n", "127.0.0.1", value.host_key)
            value.more += f"HostCertificate {value.host_key}-cert.pub\n"
        if name == "jump":
            value.more += "ListenAddress ::1\n"
        value.start()
        keys = [self.lab.folder / "id.pub", self.made / "held.pub", self.made / "expired.pub"]
        env = {"SSH_AUTH_SOCK": str(self.made / AGENT)}
        agent_keys = subprocess.run(["ssh-add", "-L"], env=env, capture_output=True, text=True, check=True).stdout
        (value.folder / "authorized_keys").write_text("".join(path.read_text() for path in keys) + agent_keys)
        self.lab.started.append(value)
        return value

    def fill_names(self, text: str, server: Sshd) -> str:
        name = f"[127.0.0.1]:{server.port}"
        jump = self.servers["jump"].port
        keys = {path.stem: " ".join(path.read_text().split()[:2]) for path in self.made.glob("*.pub")}
        values = {
            "me": name, "port": server.port, "jump": jump, "dir": self.files, "rsa": keys["rsa"], "other": keys["other"],
            "ecdsa": keys["ecdsa"], "ca": keys["ca"], "ed": " ".join(server.host_key.with_suffix(".pub").read_text().split()[:2]),
            "hashed": paramiko.HostKeys.hash_host(name), "id": (self.lab.folder / "id").read_text(),
        }  # fmt: skip
        for key, value in values.items():
            text = text.replace(f"<{key}>", str(value))
        return text

    def lay_out(self, case: Case) -> None:
        server, jump = self.servers[case.server], self.servers["jump"]
        for path in self.files.iterdir():
            path.unlink()
        for path in self.made.iterdir():
            (self.files / path.name).symlink_to(path)
        for name, text in case.files.items():
            path = self.files / self.fill_names(name, server)
            path.write_text(self.fill_names(text, server))
            path.chmod(0o700)
        (self.files / "known").write_text(self.fill_names(case.known, server))
        self._before(case, server)
        key = jump.host_key.with_suffix(".pub").read_text()
        (self.files / "jumps").write_text(f"[127.0.0.1]:{jump.port} {key}[::1]:{jump.port} {key}")
        defaults = "UserKnownHostsFile <dir>/known\nGlobalKnownHostsFile none\nUser root"
        host = self.fill_names(f"{case.config}\n{case.login}\n{defaults}", server).replace("\n", "\n  ")
        hops = f"Match host 127.0.0.1,::1,localhost !originalhost target\n  UserKnownHostsFile {self.files}/jumps\n  User root\n  IdentityFile {self.files}/id\n"
        match = 'Match originalhost target exec "exit 1"\n  HostKeyAlias wrong\nMatch originalhost target exec "exit 0"\n  HostKeyAlias right\n'
        first = f"{match}\n" if case.before == "match" else ""
        self.lab.write_config(
            f"{first}Match originalhost target\n  HostName 127.0.0.1\n  Port {server.port}\n  {host}\n{hops}"
        )

    def _before(self, case: Case, server: Sshd) -> None:
        match case.before.split():
            case ["krl", which]:
                public = server.host_key.with_suffix(".pub") if which == "ed" else self.made / f"{which}.pub"
                self._keygen("-k", "-f", self.files / "krl", public)
            case ["open"]:
                (self.files / "open").write_bytes((self.lab.folder / "id").read_bytes())
                (self.files / "open").chmod(0o644)

    def known_hosts(self) -> str:
        lines = (self.files / "known").read_text().splitlines()
        return "\n".join(line if not line.startswith("|1|") else f"hashed {line.split(' ', 1)[1]}" for line in lines)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshBench]:
    with pytest.MonkeyPatch.context() as patch:
        for lab in conftest.ssh_lab(tmp_path_factory.mktemp("cases"), patch):
            lab.base = ""
            value = SshBench(lab)
            value.files.mkdir()
            patch.chdir(value.files)
            patch.setenv("SSH_AUTH_SOCK", str(value.made / AGENT))
            patch.setenv("LAB_AGENT", str(value.made / AGENT))
            patch.setenv("LAB_DIR", str(value.made))
            yield value
            value.agent.kill()
            value.agent.wait()


def ssh_refusal() -> str:
    """Return ssh's refusal; empty if it connects."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "LogLevel=error", "target", "true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.stderr.strip() or f"exit {result.returncode}" if result.returncode else ""


def sparkwright_refusal(bench: SshBench) -> str:
    """Return sparkwright's refusal; empty if it connects."""
    link = SshLink(bench.lab.host(address="target", port=None))
    try:
        link.wait_until_connected()
    except SparkwrightError as error:
        return str(error)
    finally:
        link.close()
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sparkwright_connects_exactly_where_ssh_does(bench: SshBench, case: Case) -> None:
    bench.lay_out(case)
    expected, expected_known_hosts = ssh_refusal(), bench.known_hosts()
    bench.lay_out(case)
    refusal, known_hosts = sparkwright_refusal(bench), bench.known_hosts()
    assert (expected == "") is case.connects, f"ssh: {expected or 'connects'}"
    assert (refusal == "") is (case.connects and not case.stricter), f"{refusal or 'connects'}; ssh: {expected}"
    assert bench.fill_names(case.msg, bench.servers[case.server]) in refusal
    if not case.stricter:
        assert known_hosts == expected_known_hosts
