"""A Docker image with a few of this machine's programs and their libraries."""

import io
import subprocess
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker


@contextmanager
def temporary_image(client: docker.DockerClient, programs: Iterable[str], **options: Any) -> Iterator[str]:
    """Yield the name of an image that is removed afterwards."""
    names = set(programs)
    for name in tuple(names):
        libraries = subprocess.run(["ldd", name], capture_output=True, text=True, check=True).stdout.split()
        names |= {word for word in libraries if word.startswith("/")}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in sorted(names):
            tar.add(Path(name).resolve(), arcname=name)
    repository, tag = "sparkwright-test", uuid.uuid4().hex[:12]
    client.api.import_image_from_data(raw.getvalue(), repository=repository, tag=tag, **options)
    yield f"{repository}:{tag}"
    client.images.remove(f"{repository}:{tag}", force=True)
