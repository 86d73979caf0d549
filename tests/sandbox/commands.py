"""The real command line, in children of one process that has imported it: a fifth of the time of a new Python each."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from tests.sandbox.conftest import TOP, Desk, Said


class Commands:
    """The commands of a desk. Not for those whose one word may be left out: that is settled when they are imported."""

    def __init__(self, desk: Desk) -> None:
        self._folder = desk.root
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["sparkwright.cli", "sparkwright.cli.session"])

    def run(self, *words: str) -> Said:
        """One command, to its end."""
        out, err = self._folder / "said.out", self._folder / "said.err"
        child = self._context.Process(target=_command, args=(words, self._folder, out, err))
        child.start()
        child.join()
        return Said(child.exitcode or 0, out.read_text(), err.read_text())


def _command(words: tuple[str, ...], folder: Path, out: Path, err: Path) -> None:
    """In the child: the command, which ends the process with its exit code."""
    from sparkwright.cli import main

    os.chdir(folder)
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    os.environ["PYTHONPATH"] = str(TOP / "src")
    for name in ("SPARKWRIGHT_SANDBOX", "COLUMNS"):
        os.environ.pop(name, None)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["sparkwright", *words]
    main()
