"""vLLM's start-up log: its lines, and the state of the engine that they tell."""
