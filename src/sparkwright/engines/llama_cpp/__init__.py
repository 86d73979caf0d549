"""Data about llama.cpp's server, llama-server, and pure readers of its output."""
