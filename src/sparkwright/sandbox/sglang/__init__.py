"""A simulated SGLang with the options, errors, log lines and streams in the source of 0.5.23."""
