"""What is true of vLLM, as data with sources, and pure readers of what it says. No input, no output."""
