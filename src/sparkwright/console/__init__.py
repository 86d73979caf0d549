"""Output on the terminal and as JSON: subscribers to a run's events, tables, and screens."""
