"""What is true of SGLang."""
