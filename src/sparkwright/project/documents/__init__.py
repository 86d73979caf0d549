"""Files that people write: YAML that remembers its lines, schemas that name the mistake and the nearest right name."""
