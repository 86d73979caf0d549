"""A hostile image against every mount that sparkwright makes, on a real Docker Engine."""
