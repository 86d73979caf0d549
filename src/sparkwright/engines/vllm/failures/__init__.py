"""Why an engine did not start, died, or is slow."""
