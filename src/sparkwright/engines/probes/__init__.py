"""Small requests that show whether a server answers as its clients need it: a tool call, thinking kept apart, JSON of a schema. Pure."""
