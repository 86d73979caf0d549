"""The options of SGLang and llama.cpp by release, read from packages on PyPI, stored in tests/data/engine-options."""
