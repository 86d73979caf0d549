"""HTML pages written on the laptop: the history of hosts (`invoke report`) and the results of an experiment (`invoke bench`).

All pages share page.py, page.html.j2, style.css and plot.py. hosts_page.py and checks.py are for hosts, and experiment_page.py is
for experiments.
"""

from sparkwright.html.checks import HostChecks, parse_host_checks
from sparkwright.html.hosts_page import render_hosts_page

__all__ = ["HostChecks", "parse_host_checks", "render_hosts_page"]
