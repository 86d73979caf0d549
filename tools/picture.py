"""Make docs/deploy.svg from a real run: `sparkwright deploy --host sandbox` in a new project, in its own terminal.

.venv/bin/python -m tools.picture [PORT]  (`make picture`; run it when the output of a deploy has changed)

PORT: publishes the simulated server on this port, if the sandbox's usual port is in use on this machine.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from tests.on_a_terminal import final_lines

PICTURE = Path(__file__).parents[1] / "docs/deploy.svg"
COLUMNS = 80
COMMAND = ("deploy", "--host", "sandbox")
#: the fonts are removed from the template, because a browser would download them
FONTS = re.compile(r"@font-face \{\{.*?\n    \}\}\n", re.S)


def main() -> int:
    """Run the deploy, and draw the terminal's final contents."""
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    home = folder / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    env = {name: value for name, value in env.items() if not name.startswith(("XDG_", "SPARKWRIGHT_", "NO_COLOR"))}
    try:
        _sparkwright("init", folder=folder, env=env)
        host = folder / "hosts/sandbox.yml"
        host.write_text(re.sub(r"(?<=serve_port: )\d+", sys.argv[1] if sys.argv[1:] else r"\g<0>", host.read_text()))
        code, screen = _terminal(folder, env)
    finally:
        _sparkwright("sandbox.down", folder=folder, env=env)
        shutil.rmtree(folder)
    if code != 0 or str(folder) in screen:
        print(
            screen, f"\nno picture: the deploy ended with {code}, or its output names a folder on this machine.", sep=""
        )
        return 1
    PICTURE.write_text(_svg(screen))
    return 0


def _words(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("sparkwright")), *words]


def _sparkwright(*words: str, folder: Path, env: dict[str, str]) -> None:
    subprocess.run(_words(*words), cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)


def _terminal(folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Return the command's exit code, and the terminal's contents after it has ended."""
    our_end, command_end = pty.openpty()
    fcntl.ioctl(command_end, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    command = subprocess.Popen(
        _words(*COMMAND),
        cwd=folder,
        env=env,
        stdin=command_end,
        stdout=command_end,
        stderr=command_end,
        start_new_session=True,
    )
    os.close(command_end)
    output = b""
    try:
        while data := os.read(our_end, 65536):
            output += data
    except OSError:  # the command has ended, and its terminal is closed
        pass
    return command.wait(), "\n".join(final_lines(output.decode()))


def _svg(screen: str) -> str:
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True, color_system="256")  # noqa: SIM115
    console.print(Text(f"$ sparkwright {' '.join(COMMAND)}", "bold"))
    console.print(Text.from_ansi(screen))
    return console.export_svg(
        title="a first deploy, on the sandbox", code_format=FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="deploy"
    )


if __name__ == "__main__":
    sys.exit(main())
