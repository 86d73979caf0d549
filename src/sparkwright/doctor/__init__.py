"""The host's side of `invoke doctor`, which checks a host's setup and changes nothing, and of `invoke diagnose`.

host.py has the host as the checks see it, their findings, and the few fixes that sparkwright may apply. known.py has known facts
about DGX Sparks, with their sources. The checks are in checks/, and the diagnosis of a server in diagnosis/.
"""
