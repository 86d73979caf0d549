"""The MCP server, asked by the official client over real stdio."""
