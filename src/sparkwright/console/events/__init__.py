"""Live output of a run, as text or JSON, by subscribers to its events."""
