"""Provision and operate vLLM on NVIDIA DGX Spark hosts: a laptop plans and listens, the host does the work."""

__version__ = "0.1.0"
