"""What stands between Invoke and our commands: their options, help, refusals and start-up."""
