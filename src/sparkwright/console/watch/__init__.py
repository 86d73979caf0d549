"""`status --watch` on a terminal: its frame (frame.py), and painting and reading keys (display.py)."""
