"""Options of SGLang and llama.cpp by release: asked of the packages on PyPI, kept in tests/data/engine-options."""
