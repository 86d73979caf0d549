"""What is wrong with a server, from what runs: its container, its log, its counters, one token and one measured stream."""
