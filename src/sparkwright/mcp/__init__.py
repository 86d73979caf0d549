"""`sparkwright mcp`: the Python API for a model, over the Model Context Protocol. Needs the extra `mcp`."""
