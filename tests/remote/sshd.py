"""A real sshd on loopback, and an ssh configuration for it."""

import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.project import gateway_servers
from tests.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

#: the ports of tests, below those that Linux assigns to clients: a slot for each process
FIRST_PORT, PORTS_PER_SLOT, SLOTS = 10000, 414, 20
_untried_ports: list[int] = []


def free_port() -> int:
    """Return a free port for a server. The next port and the port of an interim server are free too.

    No test that runs at the same time gets the same port, not even one of another pytest on this machine.
    """
    while True:
        if not _untried_ports:
            first_port = FIRST_PORT + _claim_slot() * PORTS_PER_SLOT
            _untried_ports.extend(random.sample(range(first_port, first_port + PORTS_PER_SLOT, 2), PORTS_PER_SLOT // 2))
        port = _untried_ports.pop()
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for candidate in (port, port + 1, port + gateway_servers.INTERIM_PORT_OFFSET):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", candidate))
            return port


@functools.cache
def _claim_slot() -> int:
    """Claim a slot of ports for this process. The kernel releases the lock when the process ends."""
    path = Path(tempfile.gettempdir(), f"sparkwright-test-ports-{os.getuid()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    for slot in range(SLOTS):
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            return slot
    raise RuntimeError(f"{SLOTS} processes of tests are running already.")


@dataclass
class Sshd:
    """An sshd with its own host key."""

    folder: Path
    #: HOME of a login
    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    #: a command that replaces the requested one
    forced: str = ""
    #: additional lines of its configuration
    more: str = ""
    #: additional environment of a login, as NAME=VALUE
    env: tuple[str, ...] = ()
    #: lines at the start of its configuration, which override the usual lines
    first: str = ""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.host_key.exists():
            self.new_host_key()
        (self.folder / "authorized_keys").write_text((self.folder.parent / "id.pub").read_text())
        (self.folder / "authorized_keys").chmod(0o600)
        (self.folder / "config").write_text(
            f"{self.first}Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPermitRootLogin yes\nPasswordAuthentication no\n"
            f"SetEnv {' '.join([f'HOME={self.home}', *self.env])}\nAllowTcpForwarding yes\n"
            + (f"ForceCommand {self.forced}\n" if self.forced else "")
            + self.more
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(self.folder / "config")],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(self._accepts_connections, f"sshd ({self.folder}/log)", timeout_s=10)

    def _accepts_connections(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    def new_host_key(self) -> None:
        for path in (self.host_key, self.host_key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.host_key)], check=True)

    def known_hosts_line(self) -> str:
        kind, key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"

    def sessions(self) -> list[int]:
        """Return the processes that serve logged-in connections."""
        assert self.process is not None
        result = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in result.stdout.split()]

    def signal(self, number: int) -> None:
        """Send a signal to sshd and to everything that serves a connection."""
        assert self.process is not None
        for pid in [*self.sessions(), self.process.pid]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()
