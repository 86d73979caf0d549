"""From an observation to a state, and to the state that is told."""
