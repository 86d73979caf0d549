"""JSON Schemas of what `--json` prints: of the events, and of each command's answer."""
