"""The models of the simulated Ollama and their metadata."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sparkwright.units import GIB

CONTEXT = 262144  # Ollama's default with this much memory


@dataclass(frozen=True)
class Model:
    """A model of the simulated Ollama."""

    name: str
    family: str
    parameters: str
    quantization: str
    #: size of its file, bytes
    size: int
    #: memory that it takes when loaded, bytes
    held: int
    capabilities: tuple[str, ...] = ("completion", "tools")

    @property
    def digest(self) -> str:
        """The digest of its manifest."""
        return hashlib.sha256(f"sandbox {self.name}".encode()).hexdigest()

    def details(self) -> dict[str, Any]:
        """Return the details that tags, ps and show contain."""
        about = {"parent_model": "", "format": "gguf", "family": self.family, "families": [self.family]}
        return {**about, "parameter_size": self.parameters, "quantization_level": self.quantization}

    def tag(self) -> dict[str, Any]:
        """Return the model's row of /api/tags."""
        about = {"name": self.name, "model": self.name, "modified_at": "2026-10-02T09:14:03.5+00:00", "size": self.size}
        return {**about, "digest": self.digest, "details": self.details(), "capabilities": list(self.capabilities)}

    def shown(self) -> dict[str, Any]:
        """Return the body of /api/show."""
        info = {"general.architecture": self.family, f"{self.family}.context_length": CONTEXT}
        answer = {"license": "", "modelfile": f"FROM {self.name}\n", "template": "{{ .Prompt }}", "model_info": info}
        tag = self.tag()
        return {**answer, **{name: tag[name] for name in ("details", "capabilities", "modified_at")}}

    def row(self, until_s: float) -> dict[str, Any]:
        """Return the model's row of /api/ps."""
        expires = datetime.fromtimestamp(min(until_s, 2**33), UTC).isoformat()
        about = {
            "name": self.name,
            "model": self.name,
            "size": self.held,
            "digest": self.digest,
            "details": self.details(),
        }
        return {**about, "expires_at": expires, "size_vram": self.held, "context_length": CONTEXT}


LARGE = Model("qwen3:32b", "qwen3", "32.8B", "Q4_K_M", 20_201_253_588, 20 * GIB, ("completion", "tools", "thinking"))
MODELS = {
    model.name: model
    for model in (
        LARGE,
        Model("gpt-oss:20b", "gptoss", "20.9B", "MXFP4", 13_793_441_244, 14 * GIB, ("completion", "tools", "thinking")),
        Model("llama3.1:8b", "llama", "8.0B", "Q4_K_M", 4_920_753_328, 6 * GIB),
    )
}
