"""Facts from a model's own files, for any engine."""
