"""The laptop's side of the commands: plan, pin, query hosts, roll out, and report the outcome."""
