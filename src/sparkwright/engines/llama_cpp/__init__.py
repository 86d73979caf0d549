"""Flags, rules and parsers for llama-server, llama.cpp's server."""
