"""What pretend servers of every engine share: a process with its end, tokens at a real one's pace, counters."""
