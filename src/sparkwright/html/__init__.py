"""The HTML pages: what hosts did (`invoke report`) and what an experiment measured (`invoke bench`). The laptop's side.

page.py, page.html.j2, style.css: what the pages share. hosts_page, checks, stretches, plot: of hosts over time.
experiment_page, charts, drawing: of an experiment.
"""

from sparkwright.html.checks import Host, of
from sparkwright.html.hosts_page import page

__all__ = ["Host", "of", "page"]
