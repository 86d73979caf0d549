"""The command that adds an optional package fits the way sparkwright was installed, and takes sparkwright from no index."""

import json
import shlex
import sys
import tomllib
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from sparkwright import installation

TOP = Path(__file__).parent.parent
WHEEL = "file:///tmp/a%20b/sparkwright-0.2.0-py3-none-any.whl"
MCP = "mcp>=2.3,<3"


def environment(folder: Path, marker_file: str, origin: dict[str, object] | None) -> tuple[Path, Distribution]:
    """Create an environment as an installer leaves it, with the package's metadata."""
    metadata = folder / "lib/python3.12/site-packages/sparkwright-0.2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: sparkwright\nVersion: 0.2.0\n")
    if origin:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    if marker_file:
        (folder / marker_file).write_text("")
    return folder, Distribution.at(metadata)


@pytest.mark.parametrize(
    ("where", "left", "words"),
    [
        ("tools/sparkwright", "uv-receipt.toml", ["uv", "tool", "install", "--with", MCP, WHEEL]),
        ("venvs/sparkwright-2", "pipx_metadata.json", ["pipx", "inject", "sparkwright-2", MCP]),
        ("archive-v0/Si4JCLEnMfAn", "", ["uvx", "--with", MCP, "--from", WHEEL, "sparkwright", "..."]),
        (".venv", "", [sys.executable, "-m", "pip", "install", MCP]),
    ],
)
def test_the_command_fits_the_installer(tmp_path: Path, where: str, left: str, words: list[str]) -> None:
    prefix, package = environment(tmp_path / where, left, {"url": WHEEL, "archive_info": {}})
    assert shlex.split(installation.install_command("mcp", prefix, package)) == words


def test_a_package_of_a_repository_is_named_by_its_repository(tmp_path: Path) -> None:
    origin = {"url": "https://example.org/sparkwright", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}
    prefix, package = environment(tmp_path, "uv-receipt.toml", origin)
    assert installation.install_command("mcp", prefix, package).endswith(" git+https://example.org/sparkwright")


def test_a_package_of_unknown_origin_is_not_installed_again(tmp_path: Path) -> None:
    prefix, package = environment(tmp_path, "uv-receipt.toml", None)
    assert shlex.split(installation.install_command("mcp", prefix, package)) == [
        *("uv", "pip", "install", "--python", str(tmp_path), "mcp>=2.3,<3"),
    ]


def test_the_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: tuple(packages) for name, packages in extras.items() if packages} == installation.EXTRAS
