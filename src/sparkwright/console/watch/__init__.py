"""`status --watch` on a terminal: what it shows (frame.py), how that is painted and keys are read (screen.py)."""
