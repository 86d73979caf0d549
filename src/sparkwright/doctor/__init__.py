"""`invoke doctor`: the checks of a host's setup before it serves. The host's side; it changes nothing.

findings.py: the result of a check. host.py: the host as the checks see it. known.py: known facts about DGX Sparks, with sources.
checks/: one question a file. fixes.py: the few fixes that sparkwright may apply by itself.
"""
