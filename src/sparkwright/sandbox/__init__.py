"""A simulated Spark in one background process: Docker Engine, Ollama, a hub, vLLM, and one pool of memory they share.

It speaks the real protocols and refuses what the real parts refuse. Standard library only: its vLLM and Ollama also become
the images of the ssh test bed. It always says that it is a sandbox.
"""
