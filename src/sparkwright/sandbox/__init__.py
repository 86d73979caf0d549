"""A simulated Spark in one background process: Docker Engine, Ollama, a model hub, engines, and their shared memory.

Its programs use the real protocols and reject invalid requests with the real error messages. They need only the
standard library, because the images of the ssh test bed include the simulated vLLM and Ollama. The sandbox always
identifies itself as such.
"""
