"""Refuse imports inside functions that have no reason: `make lint`.

Imports belong at the top of a file. An import inside a function is allowed only if it keeps a start fast and belongs to a
group below, which says which files import what, and what that saves. The milliseconds are the cost of the import if nothing
else has imported it (`python -X importtime`, on two cores at 2.5 GHz); `make bench` measures these starts. An import that
belongs to no group is refused, and so is a group without imports.
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
    """Imports that are allowed for the same reason.

    Attributes:
        reason: what the start saves.
        files: patterns of paths inside the package.
        modules: patterns of modules; a module also stands for what is imported from it.
    """

    reason: str
    files: tuple[str, ...]
    modules: tuple[str, ...]


GROUPS = (
    Group("a host's side and a command do not need the API (6 ms)", ("__init__.py",), ("importlib",)),
    Group(
        "a command imports its own work, which --help, completion and the other commands do not need (20 to 370 ms)",
        ("cli/*",),
        ("sparkwright.*", "json"),
    ),
    Group(
        "a project without several sandboxes does not need their control (40 ms)",
        ("project/inventory/rules.py",),
        ("sparkwright.sandbox.control",),
    ),
    Group(
        "a host without a gateway does not need http.client, which queries one (30 ms)",
        ("modules/server/stop.py", "health/heal.py"),
        ("sparkwright.host.gateway.*",),
    ),
    Group(
        "a simulated vLLM in an image has only Python",
        ("engines/vllm/options.py",),
        ("packaging.*", "sparkwright.engines.vllm.releases"),
    ),
    Group(
        "all modules that the guard's process imports are locked in memory (3 to 9 MB)",
        ("guard/*",),
        ("sparkwright.guard.*", "ctypes"),
    ),
    Group(
        "connections are opened first, and the rest is imported in the meantime (6 to 290 ms)",
        ("app/connect.py", "app/runs/playbooks.py", "api/fleet.py"),
        ("sparkwright.*",),
    ),
    Group(
        "only a few plans need a lint, a copy between hosts, or a pin that is missing or looked up (28 to 250 ms)",
        ("app/findings.py", "app/plans/*", "app/runs/playbooks.py", "project/recipe/scope.py"),
        ("sparkwright.*",),
    ),
    Group(
        "--json does not need the output for people (3 ms), and a pipe does not need Rich (54 to 74 ms)",
        ("app/*",),
        ("sparkwright.console.*",),
    ),
    Group(
        "only a deploy that changed something prints the settings of clients (28 ms)",
        ("app/runs/presenters.py",),
        ("sparkwright.*",),
    ),
    Group("a host has one kind of connection: ssh 69 ms, the sandbox 57 ms", ("remote/*",), ("sparkwright.*",)),
    Group("an archive is packed once for each version (3 ms)", ("remote/runtime.py",), ("gzip", "tarfile", "zipfile")),
    Group(
        "only a message about a mistake suggests the most similar name (Pydantic 140 ms)",
        ("project/*",),
        ("sparkwright.project.documents.*",),
    ),
    Group(
        "an answer to `status` needs neither TLS nor the environment's proxies (10 and 30 ms)",
        ("transport/*",),
        ("ssl", "urllib.request"),
    ),
    Group(
        "only a message about a mistake suggests the most similar name (2 ms)", ("protocol/signature.py",), ("difflib",)
    ),
    Group(
        "Docker's SDK (60 ms): a laptop loads modules only for their arguments, and `status` queries the socket directly",
        ("host/*", "modules/*"),
        ("docker", "requests"),
    ),
    Group(
        "the SDK's client is needed only if DOCKER_HOST is not a socket",
        ("health/snapshot.py",),
        ("sparkwright.host.runs.context",),
    ),
    Group(
        "only a model that must be downloaded needs the clients of ranges and of the chunk store",
        ("host/models/*",),
        ("hf_transfer", "hf_xet", "urllib3"),
    ),
    Group(
        "processes are listed only to find the one that holds a port or memory (10 ms)",
        ("host/*", "modules/*", "health/model_hashes.py"),
        ("psutil",),
    ),
    Group(
        "only a pull and a webhook are retried (12 ms)",
        ("modules/image/docker_image.py", "health/notify.py"),
        ("tenacity",),
    ),
    Group("an answer to `status` starts no subprocess (8 ms)", ("host/machine.py",), ("sparkwright.host.output",)),
    Group(
        "only a copy between hosts needs an HTTP server (8 ms)",
        ("modules/model/hf_model.py", "modules/image/docker_image.py"),
        ("sparkwright.host.models.peer", "sparkwright.host.images.image_copy"),
    ),
    Group(
        "the rules of a check are needed only for a server that is starting, or has no check of its own (10 to 25 ms)",
        ("modules/proof/liveness.py", "runner/status.py"),
        ("sparkwright.health", "sparkwright.host.runs.journal"),
    ),
    Group("only members of a cluster meet (9 ms)", ("health/check.py",), ("sparkwright.health.cluster_heal",)),
    Group(
        "the runner answers short requests without the modules that plays need (25 to 125 ms)",
        ("runner/*",),
        ("sparkwright.*",),
    ),
    Group(
        "secrets are masked in every start, and few have these spellings (4 ms)",
        ("trust/redact.py",),
        ("base64", "shlex", "sparkwright.trust.secret_names"),
    ),
    Group(
        "the folder for temporary files matters only when a disk is full (8 ms)", ("trust/bounds.py",), ("tempfile",)
    ),
)


def lazy_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each import inside a function; `from a import b` is a.b."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {node for function in functions for node in ast.walk(function)}:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_in_group(group: Group, file: str, name: str) -> bool:
    """Return True if an import belongs to this group."""
    modules = (pattern for module in group.modules for pattern in (module, f"{module}.*"))
    return any(fnmatch(file, pattern) for pattern in group.files) and any(fnmatch(name, pattern) for pattern in modules)


def findings(top: Path, groups: tuple[Group, ...] = GROUPS) -> Iterator[str]:
    """Yield one sentence for each problem."""
    unused_groups = set(groups)
    for path in sorted((top / "src" / PACKAGE).rglob("*.py")):
        file = path.relative_to(top / "src" / PACKAGE).as_posix()
        for line, name in sorted(lazy_imports(ast.parse(path.read_text(encoding="utf-8")))):
            matches = [group for group in groups if is_in_group(group, file, name)]
            unused_groups.difference_update(matches)
            if not matches:
                location = f"{path.relative_to(top)}:{line}"
                yield f"{location}: {name} is imported in a function; move it to the top, or give its reason in {NAME}"
    yield from (f"{NAME}: no import belongs to the group: {group.reason}" for group in groups if group in unused_groups)


def main(top: Path = TOP) -> int:
    """Return 1 if an import has no reason."""
    found = list(findings(top))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
