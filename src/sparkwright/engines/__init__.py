"""What is true of each engine, as data with sources, and pure readers of what it says. A folder an engine."""
