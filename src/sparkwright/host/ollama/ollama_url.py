"""The URL for a value of OLLAMA_HOST, as ollama's envconfig parses it: port 11434 unless the scheme is named."""

from __future__ import annotations

from urllib.parse import urlsplit

PORT = 11434
EVERY_ADDRESS = ("", "0.0.0.0", "::")


def url_of(host: str) -> str:
    """Return the URL for a value of OLLAMA_HOST, as its client uses it; a wildcard address becomes loopback."""
    text = host.strip().strip("'\"")
    named = "://" in text
    parts = urlsplit(text if named else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    default = {"http": 80, "https": 443}.get(parts.scheme, PORT) if named else PORT
    name = parts.hostname or ""
    shown = "127.0.0.1" if name in EVERY_ADDRESS else f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{shown}:{port or default}"
