"""Code shared by the simulated servers of all engines: process lifecycle, token rates and counters."""
