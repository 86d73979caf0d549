"""What is true of llama.cpp's server, llama-server."""
