"""The HTML pages on the laptop: host history (`invoke report`) and results of an experiment (`invoke bench`).

page.py, page.html.j2, style.css: shared by all pages. hosts_page, checks, stretches, plot: hosts over time. experiment_page,
charts, drawing: an experiment.
"""

from sparkwright.html.checks import Host, of
from sparkwright.html.hosts_page import page

__all__ = ["Host", "of", "page"]
