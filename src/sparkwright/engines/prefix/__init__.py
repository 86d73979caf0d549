"""Prefix caching: what an engine tells of it, and whether a prefix that was sent again was found there."""
