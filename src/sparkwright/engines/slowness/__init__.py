"""Causes of slowness that every engine shares. Causes of one engine alone are in its folder, as causes.py."""
