"""`invoke report`: what hosts did, as one HTML page that needs nothing else. The laptop's side.

checks.py: a host's checks, summed into spans of time. plot.py: an SVG of one figure. page.py: the page.
"""

from sparkwright.html.checks import Host, of
from sparkwright.html.hosts_page import page

__all__ = ["Host", "of", "page"]
