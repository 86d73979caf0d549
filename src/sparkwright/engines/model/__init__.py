"""Read facts about a model from its own files, for every engine."""
