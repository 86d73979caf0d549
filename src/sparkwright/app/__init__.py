"""The laptop's side of the commands: plan, pin, ask hosts, roll out, and report the outcome."""
