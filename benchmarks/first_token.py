"""The seconds from `sparkwright init` to the first verified token in the sandbox, with three answers typed on a terminal.

    make bench-first_token

An answer is typed as soon as its question appears, so the time that a person needs is not included. The commands after `init` are
those that it suggests.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.on_a_terminal import Screen, open_screen


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        env = {"HOME": str(Path(place, "home"))}
        project = Path(place, "lab")
        project.mkdir()
        started_s = time.perf_counter()
        try:
            with open_screen("init", cwd=project, env=env) as screen:
                answer_questions(screen)
            print_time("init, three answers", started_s)
            for command in ("plan", "deploy", "client"):
                with open_screen(command, "--host", "sandbox", cwd=project, env=env) as screen:
                    code = screen.wait_for_exit(timeout_s=300)
                if code not in (0, 2):
                    sys.exit(f"{command} ended with {code}:\n{screen.seen}")
                print_time(command, started_s)
        finally:
            with open_screen("sandbox.down", cwd=project, env=env) as screen:
                screen.wait_for_exit()


def answer_questions(screen: Screen) -> None:
    """Choose the sandbox as the host, the default recipe, and that the files are written."""
    for question, answer in (("Which host?", "sandbox"), ("Which recipe?", ""), ("[Y/n]", "")):
        screen.wait_for(question)
        screen.type(f"{answer}\n")
    if screen.wait_for_exit():
        sys.exit(screen.seen)


def print_time(name: str, started_s: float) -> None:
    print(f"{name:<20} {time.perf_counter() - started_s:6.1f} s since the start", flush=True)


if __name__ == "__main__":
    main()
