"""The gateway of a simulated Spark: the HAProxy that is installed on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence

from sparkwright.errors import Refused
from sparkwright.sandbox.http_server import Handler
from sparkwright.sandbox.serving.process import SIGKILL_EXIT_CODE, Process, StartError

#: the folder of its files in a container
CONFIG_FOLDER = "/etc/gateway/files"
#: folders of daemons, which are not in every user's PATH
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
#: ends HAProxy together with the sandbox's daemon, however that ends: the pipe to its standard input is closed then
WATCHER = ("/bin/sh", "-c", 'read -r _; kill -KILL "$0"')


def find_executable() -> str:
    """Return the path of HAProxy, or an empty string if it is not installed."""
    folders = (os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS)
    return shutil.which("haproxy", path=os.pathsep.join(folders)) or ""


def require_installed(where: str) -> None:
    """Raise Refused if HAProxy is not installed.

    Args:
        where: file and line of the gateway.
    """
    if not find_executable():
        fix = "Install it: `apt-get install haproxy` (Debian, Ubuntu) or `brew install haproxy` (macOS)."
        raise Refused("a gateway on the sandbox needs `haproxy` on this machine.", where=where, fix=fix)


class NoApi(Handler):
    """A handler that is never used: HAProxy answers itself."""


class Haproxy(Process):
    """A HAProxy process.

    `argv` is the command line after `haproxy`.
    """

    default_holder = "haproxy"

    def start_and_serve(self) -> int:
        folder = self._folder_of(CONFIG_FOLDER)
        if not folder.is_dir():
            raise StartError(f"[ALERT] Cannot open configuration files in {CONFIG_FOLDER}: No such file or directory")
        with (
            subprocess.Popen(
                [find_executable(), *self.argv],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as running,
            subprocess.Popen([*WATCHER, str(running.pid)], stdin=subprocess.PIPE) as watcher,
        ):
            threading.Thread(target=self._end, args=(running,), daemon=True).start()
            for line in running.stdout or ():
                self.log(line.rstrip())
            watcher.kill()
        self.stopped.set()
        return SIGKILL_EXIT_CODE if self._code == SIGKILL_EXIT_CODE else max(0, running.returncode)

    def bind_error_log(self, error: OSError) -> Sequence[str]:
        return [f"[ALERT] {error.strerror}"]

    def stop_log(self) -> Sequence[str]:
        return []

    def exit_log(self) -> Sequence[str]:
        return []

    def crash_log(self) -> Sequence[str]:
        return ["[ALERT] (1) : Current worker was terminated by signal 11"]

    def _end(self, running: subprocess.Popen[str]) -> None:
        """Forward the stop of the sandbox's process to HAProxy."""
        self.stopped.wait()
        if running.poll() is None:
            running.send_signal(signal.SIGKILL if self._code else signal.SIGTERM)
