"""The layer between Invoke and our commands: options, help, refusals and start-up."""
