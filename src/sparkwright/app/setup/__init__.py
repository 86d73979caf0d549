"""Setup of hosts: find them, log in, survey them, and write them into the project's files."""
