"""vLLM's start-up log: its lines, and the readings that they hold."""
