"""The memory that CPU and GPU share: who holds it, and whether an engine fits."""
