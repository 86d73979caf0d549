"""Support for a custom server: any server with an OpenAI-compatible API, which its recipe describes under `openai:`."""
