"""The one file that knows huggingface_hub: metadata, the transfer of one file, and its refusals as sentences.

huggingface_hub is pinned to 0.36.2, the last line that honours HF_HUB_ENABLE_HF_TRANSFER (ignored since 1.0), and the last
that resumes a file after its client was killed. hf_transfer reads a file in parallel ranges: it wins where each connection
is throttled. A newer hub would change this file and the pins, nothing else.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed
from sparkwright.modules.machine import Machine
from sparkwright.secret import Secret

CONFIG = "config.json"


class HubDown(Failed):
    """The hub could not be asked, or a transfer broke off: worth another try."""


def entry(machine: Machine, model_id: str, revision: str, token: Secret | None) -> dict[str, Any]:
    """The lock entry of a model: commit, and every file with size, sha256 (large ones) and git blob id (small ones)."""
    from huggingface_hub import HfApi

    with _explained(machine, model_id, revision):
        info = HfApi(endpoint=machine.hub_url, token=_bare(token)).model_info(
            model_id, revision=revision, files_metadata=True, timeout=30
        )
    files = []
    for one in info.siblings or ():
        lfs = one.lfs
        sha256 = lfs["sha256"] if lfs else None
        files.append(
            {
                "path": one.rfilename,
                "size_bytes": one.size or 0,
                "sha256": sha256,
                "blob_id": None if lfs else one.blob_id,
            }
        )
    return {"commit": info.sha, "files": sorted(files, key=lambda file: str(file["path"]))}


def config(machine: Machine, model_id: str, commit: str, token: Secret | None) -> dict[str, Any]:
    """A model's config.json at a commit; empty when it is not a JSON object."""
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        fetch(machine, model_id, commit, CONFIG, Path(folder), "plain", token)
        try:
            found = json.loads((Path(folder) / CONFIG).read_text())
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}


def fetch(
    machine: Machine, model_id: str, commit: str, path: str, folder: Path, mode: str, token: Secret | None
) -> None:
    """Bring one file of a model into its folder; a file that is there is replaced in one step, when the new one is whole.

    mode: hf_transfer, plain or xet. Raises HubDown when another try may help.
    """
    from huggingface_hub import constants, hf_hub_download

    constants.HF_HUB_ENABLE_HF_TRANSFER = mode == "hf_transfer"
    constants.HF_HUB_DISABLE_XET = mode != "xet"
    with _explained(machine, model_id, commit):
        hf_hub_download(
            model_id,
            path,
            revision=commit,
            local_dir=folder,
            endpoint=machine.hub_url,
            token=_bare(token),
            force_download=True,
        )


def remove_leftovers(folder: Path) -> None:
    """Drop partial files: continuing one in another mode, or with another hub, silently corrupts it."""
    for path in (folder / ".cache/huggingface/download").rglob("*.incomplete"):
        path.unlink(missing_ok=True)


def _bare(token: Secret | None) -> str | bool:
    return token.reveal() if token else False


@contextmanager
def _explained(machine: Machine, model_id: str, revision: str) -> Iterator[None]:
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
            fix=f"Accept its licence at {machine.hub_url}/{model_id}, then give a token (hosts/groups.yml, `secrets`).",
        ) from None
    except RevisionNotFoundError:
        raise Failed(f"{model_id} has no revision {revision!r}.", fix="Check `model.revision` in the recipe.") from None
    except (RepositoryNotFoundError, HFValidationError):
        fix = "Check `model.id` in the recipe; a private one needs a token in `secrets`."
        raise Failed(f"the hub {machine.hub_url} has no model {model_id}.", fix=fix) from None
    except LocalEntryNotFoundError as error:
        raise HubDown(f"the hub {machine.hub_url} does not answer.", fix="Check the host's network.") from error
    except EntryNotFoundError as error:
        raise Failed(
            f"{model_id} has lost a file that the lock names: {error}.", fix="Remove its entry from spark.lock."
        ) from None
    except HfHubHTTPError as error:
        raise HubDown(f"the hub {machine.hub_url} answers {error}.") from None
    except (requests.ConnectionError, requests.Timeout):
        raise HubDown(f"the hub {machine.hub_url} does not answer.", fix="Check the host's network.") from None
    except requests.RequestException as error:
        raise HubDown(f"the transfer from {machine.hub_url} broke off: {type(error).__name__}.") from None
    except PermissionError as error:
        raise Failed(
            f"no permission to write {error.filename}.", fix="On the host, give the folder to this user."
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Failed("the disk is full.", fix="Free some space; what was whole already is kept.") from None
        raise HubDown(f"the transfer from {machine.hub_url} broke off: {error}.") from None
    except Exception as error:
        if type(error).__module__.startswith(("hf_transfer", "builtins")):
            raise HubDown(f"the transfer from {machine.hub_url} broke off: {error}.") from None
        raise
