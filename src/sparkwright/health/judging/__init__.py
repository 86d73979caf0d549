"""The judgement of an observation, and the state that is reported after damping."""
