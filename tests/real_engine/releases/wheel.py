"""The options, architectures and variables of a release that cannot be run here, by name, from the Python files in its wheel.

    PYTHONPATH=src python -m tests.real_engine.releases.wheel vllm-0.33.0-*.whl        # prints the number of each

The source in the wheel is parsed, not executed. So the values and the default of an option, and the resolved settings,
are unknown.
"""

import ast
import fnmatch
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real_engine.releases.kept import Report

#: where options are added to the parser of `vllm serve`
PARSERS = ("vllm/engine/arg_utils.py", "vllm/entrypoints/*cli_args.py", "vllm/entrypoints/cli/serve.py")
#: the file and the name of a class that pairs --enable-x with --disable-x
PAIRING, PAIRS = "vllm/utils/argparse_utils.py", "EnableDisableAction"
OPPOSITES = {"enable-": "disable-", "disable-": "enable-"}
REGISTRY = "vllm/model_executor/models/registry.py"
VARIABLES = "vllm/envs.py"
#: classes whose fields are options
FRONTEND = ("FrontendArgs", "BaseFrontendArgs")
#: tables in the registry that do not list supported architectures
NOT_SERVED = ("_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS", "_SUBPROCESS_COMMAND")
PREFIX = "VLLM_"


@dataclass(frozen=True)
class Wheel:
    """The names in a release's source."""

    options: frozenset[str]  # without the leading dashes
    architectures: frozenset[str]
    variables: frozenset[str]

    def report(self, version: str, date: str) -> Report:
        """Return a report with these names and without cases: shapes and defaults are unknown."""
        options = dict.fromkeys(sorted(self.options), "")
        architectures, variables = tuple(sorted(self.architectures)), tuple(sorted(self.variables))
        return Report(version, date, "none", None, options, {}, {}, architectures, (), {}, "none", variables)


def read_wheel(path: Path) -> Wheel:
    """Read a wheel. Raises ValueError if the expected files are missing."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if any(fnmatch.fnmatch(name, pattern) for pattern in PARSERS)]
        parsers = [ast.parse(archive.read(name)) for name in names]
        paired = PAIRING in archive.namelist() and PAIRS.encode() in archive.read(PAIRING)
        trees = {name: ast.parse(archive.read(name)) for name in (REGISTRY, VARIABLES) if name in archive.namelist()}
    if not parsers or len(trees) < 2:
        raise ValueError(f"{path.name} has no parser, registry or environment where vLLM keeps them")
    may_have_opposite = dict(option for tree in parsers for option in _options(tree))
    options = {*may_have_opposite, "help"}
    for name, may in may_have_opposite.items():
        for prefix, opposite in OPPOSITES.items():
            if paired and may and name.startswith(prefix):
                options.add(opposite + name.removeprefix(prefix))
    architectures, variables = _architectures(trees[REGISTRY]), _variables(trees[VARIABLES])
    return Wheel(frozenset(options), frozenset(architectures), frozenset(variables))


def list_variables(source: bytes | str) -> frozenset[str]:
    """Return the environment variables that a release's envs.py lists."""
    return frozenset(_variables(ast.parse(source)))


def _options(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each option, and whether it may have an opposite, unlike an option with an explicit action."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            action = [word for key in node.keywords if key.arg == "action" for word in _words([key.value])]
            for word in _words(node.args):
                if word.startswith("--"):
                    yield word.removeprefix("--"), not action
        elif isinstance(node, ast.ClassDef) and node.name in FRONTEND:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id.replace("_", "-"), ast.unparse(field.annotation) == "bool"


def _architectures(tree: ast.Module) -> Iterator[str]:
    """Yield the keys of the model tables, which map a name to (module, class)."""
    for name, value in _assigned(tree):
        if name.endswith("_MODELS") and name not in NOT_SERVED and isinstance(value, ast.Dict):
            yield from _words(key for key in value.keys if key is not None)


def _variables(tree: ast.Module) -> Iterator[str]:
    for name, value in _assigned(tree):
        if name == "environment_variables" and isinstance(value, ast.Dict):
            yield from (word for word in _words(key for key in value.keys if key) if word.startswith(PREFIX))


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def _words(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        names = read_wheel(path)
        counts = (
            f"{len(names.options)} options, {len(names.architectures)} architectures, {len(names.variables)} variables"
        )
        print(f"{path.name}: {counts}")
