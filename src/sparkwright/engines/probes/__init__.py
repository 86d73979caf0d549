"""Small requests that show whether a server answers as clients need: tool calls, separate thinking, JSON that matches a schema."""
