"""The options of `vllm serve`: which there are, what they take, and a command line made of them."""
