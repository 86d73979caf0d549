"""Why an engine did not start, failed, or is slow."""
