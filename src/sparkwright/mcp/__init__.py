"""`sparkwright mcp`: the Python API over the Model Context Protocol. Needs the extra `mcp`."""
