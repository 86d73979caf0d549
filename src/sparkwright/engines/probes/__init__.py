"""Small requests that show if a server answers as its clients need: a tool call, separate thinking, JSON of a schema. Pure."""
