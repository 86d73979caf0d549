"""What runs on a host before sparkwright is there: a few words of POSIX shell.

One line and no exclamation mark, so that every login shell (bash, zsh, fish, csh) hands it to sh as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.errors import Refused
from sparkwright.plan.events import Event
from sparkwright.shell import join
from sparkwright.trust.names import PYTHON_PATH, PYTHON_VERSION, matched
from sparkwright.trust.visible import one_line

FOLDER = "$HOME/.local/share/sparkwright/runtime"

#: $1: the runtime's hash. $2: what the request needs ("light", "plan" or "engine"). Runs it, or says which Python there is.
_START = (
    f'r="{FOLDER}/$1"; '
    'if [ -f "$r/python" ]; then IFS= read -r p < "$r/python"; '
    'if [ -x "$p" ] && "$p" -IS "$r/lib/sparkwright/runner/boot.py" "$r/tag" "$2"; then exit 0; '
    "elif [ $? -ne 75 ]; then exit 1; fi; fi; "
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do "
    '"$p" -c \'import sys,platform; sys.exit(1) if sys.version_info < (3,11) else print('
    '"{\\"event\\": \\"runtime_missing\\", \\"path\\": \\"%s\\", \\"python\\": \\"%d.%d\\", \\"machine\\": \\"%s\\"}" % '
    "(sys.executable, sys.version_info[0], sys.version_info[1], platform.machine()))' 2>/dev/null && exit 0; done; "
    'echo \'{"event": "no_python"}\''
)

#: $1: the hash. $2: the Python. Standard input: the archive. Three older runtimes stay for runs that still use them. When
#: somebody else has brought the same one meanwhile, his stays: a run may be reading from it.
_UNPACK = (
    f'umask 077; d="{FOLDER}"; mkdir -p "$d" && t=$(mktemp -d "$d/.new.XXXXXX") && tar -xzf - -C "$t" && '
    'printf %s "$2" > "$t/python" && "$2" -I -m compileall -q "$t/lib" >/dev/null; '
    's() { cat "$1/tag" "$1/python" 2>/dev/null; }; '
    'if [ "$(s "$d/$1")" = "$(s "$t")" ]; then rm -rf "$t"; else rm -rf "$d/$1"; mv -T "$t" "$d/$1" || rm -rf "$t"; fi; '
    'ls -1dt "$d"/*/ | tail -n +5 | while read -r o; do [ -e "$o/in-use" ] || rm -rf "$o"; done; '
    '[ -f "$d/$1/tag" ] && echo shipped'
)

#: processors that the runtime's wheels are made for, as uname prints them
MACHINES = ("aarch64", "x86_64")


@dataclass(frozen=True)
class Interpreter:
    """The Python of a host: where it is there, its version ("3.12") and the processor ("aarch64")."""

    path: str
    version: str
    machine: str


def interpreter(said: Event, host: str) -> Interpreter:
    """What a host's `runtime_missing` says, each value matched before a path or a command is made of it.

    Raises Refused for a processor that sparkwright is not made for, Failed for a value that is none.
    """
    if said["machine"] not in MACHINES:
        wrong = one_line(said["machine"], at_most=80)
        raise Refused(f"its processor is '{wrong}'; sparkwright runs on {' and '.join(MACHINES)}.", where=host)
    path = matched(PYTHON_PATH, said["path"], f"the path of Python that {host} gives")
    return Interpreter(path, matched(PYTHON_VERSION, said["python"], f"the Python that {host} gives"), said["machine"])


def start(runtime: str, need: str) -> str:
    """The command line that starts the runtime of this hash, reading a request from standard input.

    need: what it imports ahead, while it waits for the request: see boot.py.
    """
    return join(["exec", "env", "LC_ALL=C", "sh", "-c", _START, "sparkwright", runtime, need])


def unpack(runtime: str, python: str) -> str:
    """The command line that unpacks an archive from standard input as the runtime of this hash."""
    return join(["exec", "env", "LC_ALL=C", "sh", "-c", _UNPACK, "sparkwright", runtime, python])
