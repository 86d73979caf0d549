"""The memory that CPU and GPU share: its holders, and the budget of an engine."""
