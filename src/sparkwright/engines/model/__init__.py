"""What a model's own files tell of it, whichever engine serves it."""
