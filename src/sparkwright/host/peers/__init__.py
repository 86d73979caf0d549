"""Copies of verified images and models between hosts: the serving side and the client."""
