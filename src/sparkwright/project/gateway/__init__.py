"""What a gateway routes by the user's files, and what cannot be routed."""
