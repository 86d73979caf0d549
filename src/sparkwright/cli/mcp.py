"""The `mcp` command, which serves the project to a model over the Model Context Protocol."""

from __future__ import annotations

from importlib.util import find_spec

from sparkwright.cli.framework.command import command
from sparkwright.errors import Refused


@command(
    help={
        "project": "the project's folder (default: the current one, or one above it)",
        "allow-changes": "also offer deploy, restart and rollback, each of which requires the id of a plan made before",
    }
)
def mcp(project: str = ".", allow_changes: bool = False) -> None:
    """Serve the hosts to an MCP client over stdio, read only.

    docs/mcp.md lists the tools. Needs the package mcp.
    """
    if find_spec("mcp") is None:
        from sparkwright import installation

        raise Refused(
            "the MCP server needs the package `mcp`.", fix=f"Install it: `{installation.install_command('mcp')}`."
        )
    from sparkwright.api import Fleet
    from sparkwright.mcp import server

    server.serve(Fleet.open(project), allow_changes=allow_changes)


TASKS = {"": [mcp]}
