"""The gateway of a simulated Spark: this machine's HAProxy, or stand_in/ if none is installed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from sparkwright.sandbox.serving.process import KILLED, Process
from sparkwright.sandbox.web import Handler

#: the folder of its files in a container
FOLDER = "/etc/gateway/files"
#: starts HAProxy such that it ends with the sandbox's daemon, however that ends (prctl, PR_SET_PDEATHSIG)
SHIM = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


def here() -> str:
    """Return the path of HAProxy; empty if it is not installed, or can't be ended together with the sandbox."""
    return (shutil.which("haproxy") or "") if sys.platform == "linux" else ""


class NoApi(Handler):
    """A handler that is never used: HAProxy answers itself."""


class Haproxy(Process):
    """A HAProxy process.

    `argv` is the command line after `haproxy`.
    """

    usual_holder = "haproxy"

    def serve(self) -> int:
        program, folder = here(), self._folder_of(FOLDER)
        if not folder.is_dir():
            return self.last_words(
                [f"[ALERT] Cannot open configuration files in {FOLDER}: No such file or directory"], 1
            )
        words = [sys.executable, "-I", "-S", "-c", SHIM, program, *self._argv]
        with subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as running:
            threading.Thread(target=self._end, args=(running,), daemon=True).start()
            for line in running.stdout or ():
                self.log(line.rstrip())
        self.stopped.set()
        return KILLED if self._code == KILLED else max(0, running.returncode)

    def stopping(self) -> Sequence[str]:
        return []

    def dying(self) -> Sequence[str]:
        return []

    def crashing(self) -> Sequence[str]:
        return ["[ALERT] (1) : Current worker was terminated by signal 11"]

    def _end(self, running: subprocess.Popen[str]) -> None:
        """Forward the stop of the sandbox's process to HAProxy."""
        self.stopped.wait()
        if running.poll() is None:
            running.send_signal(signal.SIGKILL if self._code else signal.SIGTERM)
