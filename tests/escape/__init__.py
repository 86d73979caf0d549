"""A hostile image attacks every mount that sparkwright creates, on a real Docker Engine."""
