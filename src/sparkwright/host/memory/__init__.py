"""The memory shared by CPU and GPU: its holders, the budget of a start, and the guards."""
