"""A simulated Spark in one background process: Docker Engine, Ollama, a hub, vLLM, and the memory they share.

It speaks the real protocols and refuses what the real programs refuse. Standard library only: its vLLM and Ollama are also the
images of the ssh test bed. It always identifies itself as a sandbox.
"""
