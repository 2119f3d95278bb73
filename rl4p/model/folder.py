"""Folders of models: found by name, and their files read, known to be harmless, or refused.

A name is a folder, an address in an object store, `rl4p/tiny`, or a model of the Hugging Face hub.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address, local_copy
from rl4p.model.tensor_files import INDEX, SINGLE, read_json

log = logging.getLogger(__name__)

TOKENIZER_FILES = (  # an export copies them as they are
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)

GENERATION = "generation_config.json"
READ = ("config.json", GENERATION, SINGLE, INDEX, *TOKENIZER_FILES)
READERS = (  # an export of a model of several modalities copies them
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)

HARMLESS_FILES = {
    "words about the model": (
        *("README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "CITATION*", "*.md"),
        *("*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "images", "assets", "figures"),
    ),
    "marks of a file system, of Git or of a download": (".*", "SHA256SUMS*", "__pycache__"),
    "code, which is never run": ("*.py",),
    "the state of a trainer": (
        *("training_args.bin", "trainer_state.json", "*_results.json", "runs", "checkpoint-*"),
        *("optimizer*", "scheduler*", "rng_state*", "global_step*", "latest"),
    ),
    "readers of images and sound": READERS,
}

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER = (ADAPTER_CONFIG, "adapter_model.*", "adapters.safetensors", "adapters.npz")


def file_names(folder: Path) -> list[str]:
    """Returns the names of the files in a folder, sorted; [] if there is no such folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def refuse_adapter(folder: Path) -> None:
    """Raises InputError if a folder has an adapter, where only a whole model is read."""
    if adapter := matching(file_names(folder), ADAPTER):
        raise InputError(
            f"{folder} has an adapter ({', '.join(adapter)}), where a whole model is needed: merge "
            "it into its base model, as PEFT's merge_and_unload and rl4p.export without "
            "adapter=true do."
        )


def check_files(folder: Path) -> None:
    """Raises InputError for an adapter or two models; names the files that are not read."""
    refuse_adapter(folder)
    names = file_names(folder)
    shards: set[str] = set()
    if INDEX in names:
        weight_map = read_json(folder / INDEX).get("weight_map")
        shards = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
        if SINGLE in names and shards != {SINGLE}:
            raise InputError(
                f"{folder} has two sets of weights, {SINGLE} and the files of {INDEX}: delete the "
                f"older one ({INDEX} and its files, or {SINGLE})."
            )
    known = matching(names, (*READ, *(name for group in HARMLESS_FILES.values() for name in group)))
    if others := [name for name in names if name not in {*known, *shards}]:
        log.warning("%s has files that are not read: %s.", folder, ", ".join(others))


def matching(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def copy_readers(folder: Path | None, into: Path) -> None:
    """Copies the settings of the readers of images and sound, if there are any."""
    for path in (folder / name for name in READERS if folder):
        if path.is_file():
            shutil.copyfile(path, into / path.name)


def tokenizer_files(folder: Path) -> list[Path]:
    """Returns the files of a folder's tokenizer and chat templates, in the order of their names."""
    return [folder / name for name in matching(file_names(folder), TOKENIZER_FILES)]


SHIPPED = {"rl4p/tiny": Path(__file__).parent / "tiny"}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")

# Excludes pickles and second copies of the weights in other layouts.
FILES = (
    *("config.json", GENERATION, INDEX, ADAPTER_CONFIG, ADAPTER_WEIGHTS),
    *(name for name in TOKENIZER_FILES if not name.startswith("*")),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
    *READERS,
    *("additional_chat_templates/*.jinja", "model*.safetensors"),
)

SECONDS = 10  # timeout of the hub's first answer


def model_folder(path: str, *, weights: bool = True) -> Path:
    """Returns the folder of `model.path`: a local one, else `rl4p/tiny`, else one from the hub.

    Files from the hub stay in its cache (HF_HOME), which is used without a network. An address in
    an object store is fetched too. `weights=False` fetches all files but the weights.
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
            name, revision=revision or None, allow_patterns=list(files), etag_timeout=SECONDS
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
