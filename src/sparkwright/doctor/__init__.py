"""`invoke doctor`: what a host should be like before it serves, checked one by one. The host's side; it changes nothing.

finding.py: what a check says. host.py: what a check may ask. known.py: what is known of DGX Sparks, with sources.
checks/: one question a file. fixes.py: the few things that may be fixed without a person.
"""
