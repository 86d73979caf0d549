"""The gateway of a simulated Spark: it runs the HAProxy installed on this machine."""

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

#: folder of the configuration files in the container
CONFIG_FOLDER = "/etc/gateway/files"
#: folders that contain daemons, and that some users' PATH lacks
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
#: command that kills HAProxy when its standard input is closed, as happens when the sandbox's daemon exits
WATCHER_COMMAND = ("/bin/sh", "-c", 'read -r _; kill -KILL "$0"')


def find_executable() -> str:
    """Return the path of HAProxy, or an empty string if it is not installed."""
    folders = (os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS)
    return shutil.which("haproxy", path=os.pathsep.join(folders)) or ""


def require_installed(where: str) -> None:
    """Raise Refused if HAProxy is not installed. `where` is the gateway's file and line."""
    if not find_executable():
        fix = "Install it: `apt-get install haproxy` (Debian, Ubuntu) or `brew install haproxy` (macOS)."
        raise Refused("a gateway on the sandbox needs `haproxy` on this machine.", where=where, fix=fix)


class NoApi(Handler):
    """A placeholder: HAProxy answers all requests."""


class Haproxy(Process):
    """A HAProxy process.

    `argv` is the command line after `haproxy`.
    """

    default_holder = "haproxy"

    def start_and_serve(self) -> int:
        folder = self._host_path(CONFIG_FOLDER)
        if not folder.is_dir():
            raise StartError(f"[ALERT] Cannot open configuration files in {CONFIG_FOLDER}: No such file or directory")
        with (
            subprocess.Popen(
                [find_executable(), *self.argv],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
            subprocess.Popen([*WATCHER_COMMAND, str(process.pid)], stdin=subprocess.PIPE) as watcher,
        ):
            threading.Thread(target=self._forward_stop, args=(process,), daemon=True).start()
            for line in process.stdout or ():
                self.log(line.rstrip())
            watcher.kill()
        self.stop_event.set()
        return SIGKILL_EXIT_CODE if self._exit_code == SIGKILL_EXIT_CODE else max(0, process.returncode)

    def bind_error_log(self, error: OSError) -> Sequence[str]:
        return [f"[ALERT] {error.strerror}"]

    def stop_log(self) -> Sequence[str]:
        return []

    def exit_log(self) -> Sequence[str]:
        return []

    def crash_log(self) -> Sequence[str]:
        return ["[ALERT] (1) : Current worker was terminated by signal 11"]

    def _forward_stop(self, process: subprocess.Popen[str]) -> None:
        """Wait until the container is stopped or killed, then stop or kill HAProxy."""
        self.stop_event.wait()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if self._exit_code else signal.SIGTERM)
