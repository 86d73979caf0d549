"""The real command line, in children of one process that has imported it: a third of the processor time of a new Python each.

python -m tests.e2e.commands      reads [words, file for its output, file for its errors] a line, answers with the exit code
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.e2e.conftest import Desk, Said

TOP = Path(__file__).parent.parent.parent


class Commands:
    """The commands of a desk."""

    def __init__(self, desk: Desk) -> None:
        self._out, self._err = desk.root / "said.out", desk.root / "said.err"
        env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": f"{TOP / 'src'}{os.pathsep}{TOP}"}
        for name in ("SPARKWRIGHT_SANDBOX", "COLUMNS"):
            env.pop(name, None)
        words = [sys.executable, "-m", "tests.e2e.commands"]
        self._server = subprocess.Popen(
            words, cwd=desk.root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *words: str) -> Said:
        """One command, to its end."""
        from tests.e2e.conftest import Said

        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([words, str(self._out), str(self._err)]) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Said(code, self._out.read_text(), self._err.read_text())

    def close(self) -> None:
        """End it."""
        self._server.communicate()


def serve() -> None:
    """Import what commands need, once; then a child for each."""
    from sparkwright import cli

    gc.freeze()
    for line in sys.stdin:
        words, out, err = json.loads(line)
        child = os.fork()
        if not child:
            for path, descriptor in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["sparkwright", *words]
            cli.main()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
