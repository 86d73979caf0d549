"""The simulated Docker Engine: its API, containers, images and logs."""
