"""The routing of a gateway, from the user's files, and the checks of it."""
