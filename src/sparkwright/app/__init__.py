"""What the commands do on the laptop: plan, pin, ask hosts, roll out, and report the outcome."""
