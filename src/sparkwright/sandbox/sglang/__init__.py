"""A simulated SGLang: it takes the arguments of 0.5.23, refuses what that refuses and streams like it, as its source does."""
