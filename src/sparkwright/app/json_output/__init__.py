"""What `--json` prints, as JSON Schemas: of the events, and of each command's answer."""
