"""Lookup of models by name: in folders, object stores, the package and the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address, local_copy
from rl4p.model.folder import TOKENIZER_FILES
from rl4p.model.tensor_files import INDEX

SHIPPED = {"rl4p/tiny": Path(__file__).parent / "tiny"}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
# Excludes pickles and second copies of the weights in other layouts.
FILES = (
    *("config.json", "generation_config.json", "adapter_config.json", INDEX),
    *(name for name in TOKENIZER_FILES if not name.startswith("*")),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
    *("additional_chat_templates/*.jinja", "model*.safetensors"),
)
SECONDS = 10  # timeout of the hub's first answer


def model_folder(path: str, *, weights: bool = True) -> Path:
    """Returns the folder of `model.path`: a local one, else `rl4p/tiny`, else one from the hub.

    Files from the hub stay in its cache (HF_HOME), which is used without a network. An address in
    an object store is fetched too. `weights=False` fetches all files but the weights.

    Raises:
      InputError: the path is none of these, or cannot be fetched.
      RunError: an object store cannot be read.
    """
    files = FILES if weights else FILES[:-1]
    if is_address(path):
        return local_copy(path, files)
    if Path(path).is_dir():
        return Path(path)
    if path in SHIPPED:
        return SHIPPED[path]
    if not HUB_ID.fullmatch(path):
        raise InputError(
            f"model.path={path} is not a folder: give one with config.json, safetensors and "
            "tokenizer.json, its address in an object store (s3://BUCKET/NAME), a hub id "
            "(OWNER/NAME or OWNER/NAME@REVISION), or "
            f"{', '.join(SHIPPED)}."
        )
    return fetch(path, files)


def lasting_name(path: str) -> str:
    """Returns the name by which others find the model: a hub id, or a folder's absolute path."""
    if Path(path).is_dir() or path in SHIPPED:
        return str(model_folder(path).absolute())
    return path


def fetch(path: str, files: Sequence[str] = FILES) -> Path:
    # Imported here, because it takes half a second and most runs do not need it.
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
            etag_timeout=SECONDS,
        )
    except GatedRepoError:
        reason = "the hub gives access only with its owner's permission (`hf auth login`)"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private (`hf auth login`)"
    except RevisionNotFoundError:
        reason = f"the hub's {name} has no revision {revision}"
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached, and the local cache does not have it"
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set, and the local cache does not have it"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = f"the hub failed: {' '.join(str(error).split())}".rstrip(".")
    else:
        return Path(folder)
    raise InputError(f"model.path={path} is not a folder, and {reason}.")
