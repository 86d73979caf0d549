"""YAML files that people write, with their lines, and schemas that name a mistake and the nearest right name."""
