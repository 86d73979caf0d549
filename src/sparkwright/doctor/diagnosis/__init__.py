"""The diagnosis of a running server: its container, its log, its counters, one token and one measured stream."""
