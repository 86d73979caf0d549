"""Flags, rules and parsers for SGLang, with their sources."""
