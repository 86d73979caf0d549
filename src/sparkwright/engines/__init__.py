"""Data about each engine with its sources, and pure readers of engine output. One folder per engine."""
