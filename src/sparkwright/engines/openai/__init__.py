"""Any server with OpenAI's API, as its recipe describes it."""
