"""Modules about images: fetching, copying and handing them over."""
