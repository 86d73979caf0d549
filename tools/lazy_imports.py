"""The reasons for imports inside functions: `make lint` refuses any other.

Imports stand at the top of a file. One that stands in a function keeps a start fast, and is of a group below: which files
import what, and what that saves. The milliseconds are what the import adds where nothing else has imported it (`python -X
importtime`, on two cores at 2.5 GHz); `make bench` shows the starts that they are about. An import of no group is refused, and
so is a group of which nothing is left.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

TOP = Path(__file__).parent.parent
PACKAGE = "sparkwright"
NAME = "tools/lazy_imports.py"


@dataclass(frozen=True, slots=True)
class Group:
    """why: what the start saves. files, modules: patterns; a module also stands for what is imported from it."""

    why: str
    files: tuple[str, ...]
    modules: tuple[str, ...]


GROUPS = (
    Group("a host's side and a command have no API (6 ms)", ("__init__.py",), ("importlib",)),
    Group(
        "a command imports its own work: --help, completion and the other commands do without (20 to 370 ms)",
        ("cli/*",),
        ("sparkwright.*", "json"),
    ),
    Group(
        "a host without a gateway does without http.client, which asks one (30 ms)",
        ("modules/server/stop.py", "health/heal.py"),
        ("sparkwright.host.gateway.*",),
    ),
    Group(
        "a simulated vLLM in an image has nothing but Python",
        ("engines/vllm/options.py",),
        ("packaging.*", "sparkwright.engines.vllm.releases"),
    ),
    Group(
        "the guard's process is the modules that it imports: all of them are locked in memory (3 to 9 MB)",
        ("guard/*",),
        ("sparkwright.guard.*", "ctypes"),
    ),
    Group(
        "connections are opened first, the rest is imported while they are made (6 to 290 ms)",
        ("app/connect.py", "app/runs/playbooks.py", "api/fleet.py"),
        ("sparkwright.*",),
    ),
    Group(
        "what few plans need: a lint, a copy between hosts, a pin that is missing or learnt (28 to 250 ms)",
        ("app/findings.py", "app/plans/*", "app/runs/playbooks.py", "project/recipe/scope.py"),
        ("sparkwright.*",),
    ),
    Group(
        "what a person reads: --json needs none of it (3 ms), and a pipe no Rich (54 to 74 ms)",
        ("app/*",),
        ("sparkwright.console.*",),
    ),
    Group(
        "the settings of clients, for a deploy that changed something (28 ms)",
        ("app/runs/presenters.py",),
        ("sparkwright.*",),
    ),
    Group("the kind of connection that a host has: ssh 69 ms, the sandbox 57 ms", ("remote/*",), ("sparkwright.*",)),
    Group("an archive is packed once for each version (3 ms)", ("remote/runtime.py",), ("gzip", "tarfile", "zipfile")),
    Group(
        "a sentence about a mistake names the nearest word (Pydantic 140 ms)",
        ("project/*",),
        ("sparkwright.project.documents.*",),
    ),
    Group(
        "TLS, and the environment's proxies: an answer to `status` has neither (10 and 30 ms)",
        ("transport/*",),
        ("ssl", "urllib.request"),
    ),
    Group("a sentence about a mistake names the nearest word (2 ms)", ("protocol/signature.py",), ("difflib",)),
    Group(
        "docker's SDK: a laptop loads modules for their arguments, and an answer to `status` asks the socket itself (60 ms)",
        ("host/*", "modules/*"),
        ("docker", "requests"),
    ),
    Group(
        "the SDK's client, where the Docker host is no socket",
        ("health/snapshot.py",),
        ("sparkwright.host.runs.context",),
    ),
    Group(
        "the clients of ranges and of the chunk store, for a model that has to be fetched",
        ("host/models/*",),
        ("hf_transfer", "hf_xet", "urllib3"),
    ),
    Group(
        "processes, for one that holds a port or memory (10 ms)",
        ("host/*", "modules/*", "health/model_hashes.py"),
        ("psutil",),
    ),
    Group(
        "retries, of a pull and of a webhook (12 ms)",
        ("modules/image/docker_image.py", "health/notify.py"),
        ("tenacity",),
    ),
    Group("subprocess: an answer to `status` runs nothing (8 ms)", ("host/machine.py",), ("sparkwright.host.output",)),
    Group(
        "the HTTP server of a copy between hosts (8 ms)",
        ("modules/model/hf_model.py", "modules/image/docker_image.py"),
        ("sparkwright.host.models.peer", "sparkwright.host.images.image_copy"),
    ),
    Group(
        "the rules of a check: for a server that is still starting, or that no check speaks for (10 to 25 ms)",
        ("modules/proof/liveness.py", "runner/status.py"),
        ("sparkwright.health", "sparkwright.host.runs.journal"),
    ),
    Group("a server of its own meets nobody (9 ms)", ("health/check.py",), ("sparkwright.health.cluster_heal",)),
    Group(
        "the runner answers short questions without what plays need (25 to 125 ms)",
        ("runner/*",),
        ("sparkwright.*",),
    ),
    Group(
        "secrets are hidden in every start, and few have these spellings (4 ms)",
        ("trust/redact.py",),
        ("base64", "shlex", "sparkwright.trust.secret_names"),
    ),
    Group("the folder for temporary files, when a disk is full (8 ms)", ("trust/bounds.py",), ("tempfile",)),
)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each import inside a function; `from a import b` is a.b."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {node for function in functions for node in ast.walk(function)}:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def holds(group: Group, file: str, name: str) -> bool:
    """Return True if an import belongs to this group."""
    wanted = (pattern for module in group.modules for pattern in (module, f"{module}.*"))
    return any(fnmatch(file, one) for one in group.files) and any(fnmatch(name, one) for one in wanted)


def findings(top: Path, groups: tuple[Group, ...] = GROUPS) -> Iterator[str]:
    """Yield the problems, one sentence each."""
    left = set(groups)
    for path in sorted((top / "src" / PACKAGE).rglob("*.py")):
        file = path.relative_to(top / "src" / PACKAGE).as_posix()
        for line, name in sorted(imported(ast.parse(path.read_text(encoding="utf-8")))):
            found = [group for group in groups if holds(group, file, name)]
            left.difference_update(found)
            if not found:
                where = f"{path.relative_to(top)}:{line}"
                yield f"{where}: {name} is imported in a function; move it to the top, or give its reason in {NAME}"
    yield from (f"{NAME}: nothing is left of the group: {group.why}" for group in groups if group in left)


def main(top: Path = TOP) -> int:
    """Return 1 if an import has no reason."""
    found = list(findings(top))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
