"""The pretend Docker Engine: its API, containers, images and logs."""
