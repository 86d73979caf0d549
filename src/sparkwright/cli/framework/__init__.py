"""The layer between Invoke and the commands: options, help, error messages and start-up."""
