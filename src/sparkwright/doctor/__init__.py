"""The host's side of `invoke doctor`, which checks a host's setup without changing it, and of `invoke diagnose`.

host.py: the inspected host, findings, and the fixes that sparkwright may apply. known_facts.py: facts about DGX Sparks, with
their sources. checks/: the checks of a host. diagnosis/: the diagnosis of a server.
"""
