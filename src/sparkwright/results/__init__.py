"""What the lab measured, on the laptop: files that last, tables, pages, comparisons."""
