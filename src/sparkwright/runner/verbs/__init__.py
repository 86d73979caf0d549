"""The short answers to the laptop, one a verb: none of them is a run."""
