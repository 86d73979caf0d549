"""Any server with OpenAI's API, described in its recipe."""
