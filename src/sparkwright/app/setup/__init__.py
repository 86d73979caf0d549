"""Set up hosts: find them, log in, survey them, and add them to the project's files."""
