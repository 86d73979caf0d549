"""The file that knows huggingface_hub: an answer, the transfer of one file, and its refusals as sentences.

huggingface_hub is pinned to 0.36.2, the last line that honours HF_HUB_ENABLE_HF_TRANSFER (ignored since 1.0), and the last
that resumes a file after its client was killed (docs/models.md). hf_transfer reads a file in parallel ranges: it wins where
each connection is throttled. A newer hub would change this file, as_locked.py and the pins, nothing else.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.errors import Failed
from sparkwright.host.models import as_locked
from sparkwright.secret import Secret
from sparkwright.trust.names import leads_out
from sparkwright.visible import one_line

CONFIG = "config.json"
RANGES = 20
RANGE_BYTES = 3 * 2**20  # held in memory while they come, two or three times over: 20 x 3 MiB keep it below 300 MB
CHUNK_BYTES = 2**20  # the watchdog sees a file grow by so much: more, and a slow line would look like a hanging one
LARGE_BYTES = 5 * RANGE_BYTES  # huggingface_hub gives smaller files to a plain request, whatever the mode
RESUMES = ("plain",)
PARTIAL = ".cache/huggingface/download"
MARK = ".cache/huggingface/sparkwright-mode"  # where no file of a model can be


class HubDown(Failed):
    """The hub could not be asked, or a transfer broke off: worth another try."""


class DiskFull(Failed):
    """No room is left in the middle of a transfer."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model at a commit, and who hands it out: a hub, or a peer that speaks as one. also: other addresses of that peer."""

    url: str
    id: str
    commit: str
    token: Secret | None = None
    also: tuple[str, ...] = ()

    @property
    def each(self) -> list[Source]:
        """One source for each address."""
        return [replace(self, url=url, also=()) for url in (self.url, *self.also)]

    def without(self, url: str) -> Source:
        """The same without an address, where it has others."""
        left = [one for one in (self.url, *self.also) if one != url] or [self.url]
        return replace(self, url=left[0], also=tuple(left[1:]))

    def address(self, path: str) -> str:
        """Where a file of it is."""
        return f"{self.url}/{self.id}/resolve/{self.commit}/{quote(path)}"

    def headers(self) -> dict[str, str]:
        """What a request for it carries."""
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}


def answer(source: Source, address: str, *, first_bytes: int = 0) -> bytes:
    """The body of a short answer of a hub. Raises Failed, and HubDown when another try may help.

    first_bytes: no more than the beginning of a file; 0 for all of it.
    """
    from huggingface_hub.utils._http import hf_raise_for_status

    from sparkwright.host.models import bounded_http

    with _explained(source.url, source.id, source.commit):
        part = {"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {}
        response = bounded_http.get(address, {**source.headers(), **part})
        hf_raise_for_status(response)
        return response.content


def use(mode: str, *, retries: int) -> None:
    """Fetch in this mode from now on, in this process: huggingface_hub keeps it in module variables.

    retries: of one request, by the client itself. Its own five take 23 s in silence, for a hub that refuses at once too.
    """
    from huggingface_hub import configure_http_backend, constants, file_download
    from huggingface_hub.utils._http import http_backoff
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from sparkwright.host.models import bounded_http

    disable_progress_bars()
    configure_http_backend(bounded_http.session)
    as_locked.hold()
    constants.HF_HUB_ENABLE_HF_TRANSFER = mode == "hf_transfer"
    constants.HF_HUB_DISABLE_XET = mode != "xet"
    vars(file_download)["http_backoff"] = functools.partial(http_backoff, max_retries=retries)
    constants.HF_TRANSFER_CONCURRENCY = RANGES
    constants.DOWNLOAD_CHUNK_SIZE = RANGE_BYTES if mode == "hf_transfer" else CHUNK_BYTES


def fetch(source: Source, file: Mapping[str, Any], folder: Path, *, again: bool = False) -> None:
    """Bring one file into a folder, in the mode that is in use. A plain transfer goes on where one of its own stopped.

    file: as spark.lock has it; a source that has it in another size is refused, and no byte more than that is written.
    again: what a cache of this machine holds of it is not to be trusted. Raises HubDown when another try may help.
    """
    from huggingface_hub import hf_hub_download

    with _explained(source.url, source.id, source.commit), as_locked.wanted(file, source.url):
        hf_hub_download(
            source.id,
            file["path"],
            revision=source.commit,
            local_dir=folder,
            endpoint=source.url,
            token=source.token.reveal() if source.token else False,
            force_download=again,
        )


def partial(folder: Path, path: str, etag: str) -> Path:
    """Where a file grows while it comes."""
    from huggingface_hub._local_folder import get_local_download_paths

    return get_local_download_paths(folder, path).incomplete_path(etag)


def prepare(folder: Path, mode: str) -> None:
    """Before a transfer into a folder: drop partial files unless this mode of this very hub left them and can go on.

    Continuing one that hf_transfer, or another hub, left gives a file of the right size with holes in it, silently.
    """
    from importlib.metadata import version

    now = f"{mode} huggingface_hub-{version('huggingface_hub')}"
    mark = folder / MARK
    if mode not in RESUMES or not mark.exists() or mark.read_text() != now:
        remove_leftovers(folder)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(now)


def remove_leftovers(folder: Path) -> None:
    """Drop the partial files of a folder. Where a link leads out of it, they are another's."""
    if leads_out(folder, folder / PARTIAL):
        return
    for path in (folder / PARTIAL).rglob("*.incomplete"):
        path.unlink(missing_ok=True)


@contextmanager
def _explained(url: str, model_id: str, revision: str) -> Iterator[None]:
    """The hub's exceptions as sentences. A gated model's is a kind of the unknown model's, so it comes first."""
    import requests
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise Failed(
            f"{model_id} is gated.",
            fix=f"Accept its license at {url}/{model_id}, then set a token (hosts/groups.yml, `secrets`).",
        ) from None
    except RevisionNotFoundError:
        raise Failed(f"{model_id} has no revision {revision!r}.", fix="Check `model.revision` in the recipe.") from None
    except (RepositoryNotFoundError, HFValidationError):
        fix = "Check `model.id` in the recipe; a private model needs a token in `secrets`."
        raise Failed(f"the hub {url} has no model {model_id}.", fix=fix) from None
    except (LocalEntryNotFoundError, requests.ConnectionError, requests.Timeout) as error:
        raise HubDown(f"the hub {url} does not answer.", fix=_NETWORK) from error
    except EntryNotFoundError as error:
        raise Failed(
            f"a file of {model_id} in spark.lock no longer exists: {_short(error)}.",
            fix="Remove its entry from spark.lock.",
        ) from None
    except HfHubHTTPError as error:
        raise HubDown(f"the hub {url} returned {_short(error)}.") from None
    except (
        requests.TooManyRedirects,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidURL,
        RecursionError,
    ):
        raise Failed(f"the hub {url} redirects in a loop, or to a URL that is not http(s).", fix=OTHER) from None
    except requests.RequestException as error:
        raise HubDown(f"the transfer from {url} was interrupted: {type(error).__name__}.") from None
    except PermissionError as error:
        raise Failed(
            f"no permission to write {error.filename}.", fix="On the host, chown the directory to this user."
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(_FULL, fix=_FREE) from None
        if error.errno == errno.EFBIG:
            raise Failed(_LONGER, fix=OTHER) from None
        raise HubDown(f"the transfer from {url} was interrupted: {_short(error)}.") from None
    except Exception as error:
        causes = f"{error} {error.__cause__}"
        if "os error 28" in causes or "No space left" in causes:
            raise DiskFull(_FULL, fix=_FREE) from None
        if "os error 27" in causes:
            raise Failed(_LONGER, fix=OTHER) from None
        if type(error).__module__.startswith(
            ("hf_transfer", "builtins", "urllib3", "requests", "http", "huggingface_hub")
        ):
            raise HubDown(f"the transfer from {url} was interrupted: {_short(error)}.") from None
        raise


def _short(error: BaseException) -> str:
    """What a server said, which may be a page of it."""
    return one_line(str(error).strip().rstrip("."), at_most=300)


OTHER = "Use another hub (HF_ENDPOINT), or check for a proxy in between."
_NETWORK = "Check the host's network."
_LONGER = "a file is larger than spark.lock says."
_FULL = "the disk is full."
_FREE = "Free some space; complete files are kept."
