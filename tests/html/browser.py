"""Pages in a headless browser, with what a script tells of their layout."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: describes an element's rectangle and texts, and a plot's shapes of a kind
HELPERS = """
const box = item => { const b = item.getBoundingClientRect(); return {x: b.x, y: b.y, w: b.width, h: b.height}; };
const plot = (svg, kinds) => ({
  box: box(svg), role: svg.getAttribute('role'),
  texts: [...svg.querySelectorAll('text')].map(t => ({words: t.textContent, ...box(t)})),
  shapes: [...svg.querySelectorAll(kinds)].map(s => ({kind: s.getAttribute('class'), fill: getComputedStyle(s).fill, ...box(s)})),
});
const describe = () => ({
  headings: [...document.querySelectorAll('h1, h2')].map(item => item.textContent),
  fetched: performance.getEntriesByType('resource').map(item => item.name),
  scopes: [...document.querySelectorAll('th')].every(item => item.hasAttribute('scope')),
  fits: document.documentElement.scrollWidth <= document.documentElement.clientWidth,
});
"""


def probe_page(page: str, probe: str, folder: Path, width: int) -> dict[str, Any]:
    """Return the description and the value of a JavaScript object in a copy of the page, which allows scripts."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser here (Debian: chromium)")
    script = f"document.getElementById('probe').textContent = JSON.stringify({{...describe(), ...{probe}}})"
    element = f'<pre id="probe"></pre><script>{HELPERS}addEventListener("load", () => {{ {script} }})</script></body>'
    allowed = page.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    file = folder / "report.html"
    file.write_text(allowed.replace("</body>", element))
    options = f"--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size={width},1400 --dump-dom"
    command = [program, *options.split(), f"--user-data-dir={folder}/profile", file.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    match = re.search(r'<pre id="probe">(.*?)</pre>', result.stdout, re.S)
    assert match, result.stderr[-2000:]
    return dict(json.loads(html.unescape(match[1])))


def check_layout(plot: dict[str, Any]) -> None:
    """Check that no part of a plot leaves its frame, and no text covers another."""
    frame = plot["box"]
    for part in [*plot["shapes"], *plot["texts"]]:
        assert part["x"] >= frame["x"] - 1, part
        assert part["x"] + part["w"] <= frame["x"] + frame["w"] + 1, part
        assert part["y"] >= frame["y"] - 1, part
        assert part["y"] + part["h"] <= frame["y"] + frame["h"] + 2, part
    texts = [text for text in plot["texts"] if text["w"]]
    for number, text in enumerate(texts):
        for other in texts[number + 1 :]:
            apart = text["x"] + text["w"] <= other["x"] + 1 or other["x"] + other["w"] <= text["x"] + 1
            above = text["y"] + text["h"] <= other["y"] + 2 or other["y"] + other["h"] <= text["y"] + 2
            assert apart or above, (text, other)
