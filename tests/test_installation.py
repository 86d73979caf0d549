"""The command that installs an optional package matches the installer, and never fetches sparkwright from an index."""

import json
import shlex
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sparkwright import installation

TOP = Path(__file__).parent.parent
WHEEL = "file:///tmp/a%20b/sparkwright-0.2.0-py3-none-any.whl"
MCP = "mcp>=2.3,<3"


def create_environment(
    folder: Path, marker_file: str, origin: Mapping[str, object] | None
) -> tuple[Path, Distribution]:
    """Create an environment as an installer does, with the package's metadata."""
    metadata = folder / "lib/python3.12/site-packages/sparkwright-0.2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: sparkwright\nVersion: 0.2.0\n")
    if origin:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    if marker_file:
        (folder / marker_file).write_text("")
    return folder, Distribution.at(metadata)


@pytest.mark.parametrize(
    ("prefix", "marker_file", "words"),
    [
        ("tools/sparkwright", "uv-receipt.toml", ["uv", "tool", "install", "--with", MCP, WHEEL]),
        ("venvs/sparkwright-2", "pipx_metadata.json", ["pipx", "inject", "sparkwright-2", MCP]),
        ("archive-v0/Si4JCLEnMfAn", "", ["uvx", "--with", MCP, "--from", WHEEL, "sparkwright", "..."]),
        (".venv", "", [sys.executable, "-m", "pip", "install", MCP]),
    ],
    ids=["uv tool", "pipx", "uvx", "pip"],
)
def test_command_matches_the_installer(tmp_path: Path, prefix: str, marker_file: str, words: list[str]) -> None:
    folder, package = create_environment(tmp_path / prefix, marker_file, {"url": WHEEL, "archive_info": {}})
    assert shlex.split(installation.install_command("mcp", folder, package)) == words


def test_package_from_a_git_repository_is_named_by_its_url(tmp_path: Path) -> None:
    origin = {"url": "https://example.org/sparkwright", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}
    prefix, package = create_environment(tmp_path, "uv-receipt.toml", origin)
    assert installation.install_command("mcp", prefix, package).endswith(" git+https://example.org/sparkwright")


def test_package_of_unknown_origin_is_not_reinstalled(tmp_path: Path) -> None:
    prefix, package = create_environment(tmp_path, "uv-receipt.toml", None)
    words = ["uv", "pip", "install", "--python", str(tmp_path), MCP]
    assert shlex.split(installation.install_command("mcp", prefix, package)) == words


def test_pip_is_installed_with_sparkwright() -> None:
    """The laptop downloads the hosts' runtime with pip, and `uv tool install` creates environments without it."""
    dependencies = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "pip" in {Requirement(line).name for line in dependencies}


def test_packages_are_those_of_the_extras_in_pyproject() -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: tuple(packages) for name, packages in extras.items() if packages} == installation.EXTRAS
