"""MkDocs hooks: pages in the order of docs/README.md, links to files outside docs/, a search that works from the disk."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

#: browsers start no Worker from file://, so the search runs in a frame; the theme would load such a script from another site
FRAME = "javascripts/iframe-worker.js"
FRAME_SCRIPT = """\
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = frame.contentWindow;
    inside.document.open();
    inside.document.write("<!doctype html><title>search</title>");
    inside.document.close();
    inside.importScripts = () => {};
    inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    this.loaded = new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; });
    script.src = url;
    inside.document.head.append(script);
    this.postMessage = data => this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    this.terminate = () => frame.remove();
  }
};
"""
FOLDER = re.compile(r"\]\(((?!\w+:)[\w./-]+/)\)")
LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+)\)")


def on_config(config: Any) -> Any:
    """Build the navigation from the index of the pages."""
    docs = Path(config.docs_dir)
    index = (docs / "README.md").read_text()
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.M | re.S)
    config.nav = [{"Documentation": "README.md"}, *({title: list(entries(docs, text))} for title, text in sections)]
    config.extra["polyfills"] = [FRAME]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the script with which the search works from the disk."""
    files.append(File.generated(config, FRAME, content=FRAME_SCRIPT))
    return files


def entries(docs: Path, text: str) -> Iterator[dict[str, Any]]:
    """Yield a section's navigation: one page for each link, or all pages of a linked folder."""
    for title, link in LINK.findall(text):
        name = title.strip("`")
        folder = docs / link.rstrip("/").removesuffix("/README.md")
        if folder.is_dir():
            pages = sorted(path.relative_to(docs).as_posix() for path in folder.glob("*.md"))
            yield {name[0].upper() + name[1:]: pages}
        elif link.endswith(".md"):
            yield {name[0].upper() + name[1:]: link}


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files outside docs/ to the repository."""
    up = "../" * (page.file.src_uri.count("/") + 1)
    text = re.sub(rf"\]\({re.escape(up)}(?!\.)", f"]({config.repo_url}/blob/main/", text)
    return FOLDER.sub(lambda link: _folder(link[1], page.file.src_uri, config), text)


def _folder(link: str, page: str, config: Any) -> str:
    """Return a link to the folder's index, or to the folder in the repository if it has no index."""
    folder = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    index = Path(config.docs_dir) / folder / "README.md"
    return f"]({link}README.md)" if index.exists() else f"]({config.repo_url}/tree/main/docs/{folder})"
