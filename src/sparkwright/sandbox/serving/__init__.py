"""The parts that the simulated servers of all engines share: process lifecycle, realistic token rates and counters."""
