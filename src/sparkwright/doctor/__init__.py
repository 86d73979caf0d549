"""`invoke doctor`: what a host should be like before it serves, looked at one by one. The host's side; it changes nothing.

finding.py: what a check says. host.py: what a check may ask. known.py: what is known of DGX Sparks, with sources.
checks/: one question a file. mends.py: the few things that may be set right without a person.
"""
