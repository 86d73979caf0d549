"""The laptop's side of the lab: build an experiment from a command's options, and collect its cells as results."""
