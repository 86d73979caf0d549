"""From `sparkwright init` to the first verified token, in the sandbox, in seconds, with three answers typed on a terminal.

    make bench-first_token

The answers are typed as soon as a question stands there; a person's own seconds come on top. What follows is what `init` prints.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.on_a_terminal import Screen, open_screen

TOOK_S = 300


def main() -> None:
    """Print a line for each command, and the sum."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        env = {"HOME": str(folder / "home")}
        project = folder / "lab"
        project.mkdir()
        began_s = time.perf_counter()
        try:
            with open_screen("init", cwd=project, env=env) as seen:
                answered(seen)
            told("init, three answers", began_s)
            for command in ("plan", "deploy", "client"):
                with open_screen(command, "--host", "sandbox", cwd=project, env=env) as seen:
                    code = seen.wait_for_exit(TOOK_S)
                if code not in (0, 2):
                    sys.exit(f"{command} ended with {code}:\n{seen.seen}")
                told(command, began_s)
        finally:
            with open_screen("sandbox.down", cwd=project, env=env) as seen:
                seen.wait_for_exit()


def answered(seen: Screen) -> None:
    """Answer the prompts: the sandbox as the host, and the defaults for the recipe and for writing it."""
    for question, answer in (("Which host?", "sandbox"), ("Which recipe?", ""), ("[Y/n]", "")):
        seen.wait_for(question)
        seen.type(f"{answer}\n")
    if seen.wait_for_exit():
        sys.exit(seen.seen)


def told(what: str, began_s: float) -> None:
    print(f"{what:<20} {time.perf_counter() - began_s:6.1f} s since the start", flush=True)


if __name__ == "__main__":
    main()
