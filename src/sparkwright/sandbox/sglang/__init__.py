"""A pretend SGLang: it takes the arguments of 0.5.23, refuses what that refuses and streams like it, all as its source says."""
