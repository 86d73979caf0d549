"""The MCP server with the official client, over real stdio."""
