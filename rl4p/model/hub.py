"""Models by name: folders on this machine, the one in the package, and the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from rl4p.errors import InputError

SHIPPED = {"rl4p/tiny": Path(__file__).parent / "tiny"}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
# Never pickles, and never a second copy of the weights in another layout.
FILES = ("*.json", "*.jinja", "model*.safetensors")
SECONDS = 10  # to wait for the hub's first word


def model_folder(path: str, *, weights: bool = True) -> Path:
    """The folder of `model.path`: a folder here, else `rl4p/tiny`, else one fetched from the hub.

    What the hub gave stays in its cache (HF_HOME), and without a network that is used.
    `weights=False` fetches what describes the model alone.

    Raises:
      InputError: it is none of these, or cannot be fetched; one sentence says why.
    """
    if Path(path).is_dir():
        return Path(path)
    if path in SHIPPED:
        return SHIPPED[path]
    if not HUB_ID.fullmatch(path):
        raise InputError(
            f"model.path={path} is not a folder; give one with config.json, safetensors and "
            "tokenizer.json, a hub id (OWNER/NAME or OWNER/NAME@REVISION), or "
            f"{', '.join(SHIPPED)}."
        )
    return fetch(path, FILES if weights else FILES[:-1])


def lasting_name(path: str) -> str:
    """What others find the model of `model.path` by: a hub id, or the whole path of a folder."""
    if Path(path).is_dir() or path in SHIPPED:
        return str(model_folder(path).absolute())
    return path


def fetch(path: str, files: Sequence[str] = FILES) -> Path:
    # Half a second to import, and most runs do not need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, _, revision = path.partition("@")
    try:
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=list(files),
            ignore_patterns=["*/*"],  # a pattern's * does not stop at folders
            etag_timeout=SECONDS,
        )
    except GatedRepoError:
        reason = "the hub gives it only to those whom its owner lets in (`hf auth login`)"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or only for others (`hf auth login`)"
    except RevisionNotFoundError:
        reason = f"the hub's {name} has no revision {revision}"
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached, and its cache here does not have it"
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set, and the hub's cache here does not have it"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = f"the hub failed: {' '.join(str(error).split())}".rstrip(".")
    else:
        return Path(folder)
    raise InputError(f"model.path={path} is not a folder, and {reason}.")
