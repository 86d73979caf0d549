"""Terminal and JSON output: subscribers to a run's events, tables, and screens."""
