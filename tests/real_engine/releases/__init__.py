"""Sparkwright's tables about each release of vLLM, compared with that release."""
