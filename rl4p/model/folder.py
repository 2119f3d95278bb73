"""The files of a model folder: each is read, known to be harmless, named, or refused."""

import logging
from fnmatch import fnmatch
from pathlib import Path

from rl4p.base.errors import InputError
from rl4p.model.tensor_files import INDEX, SINGLE, read_json

log = logging.getLogger(__name__)

TOKENIZER_FILES = (  # an export copies them as they are
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)
READ = ("config.json", "generation_config.json", SINGLE, INDEX, *TOKENIZER_FILES)
HARMLESS = {
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
    "readers of images and sound": ("preprocessor_config.json", "processor_config.json"),
}
ADAPTER = ("adapter_config.json", "adapter_model.*", "adapters.safetensors", "adapters.npz")


def file_names(folder: Path) -> list[str]:
    """Returns the names of the files in a folder, sorted; [] if there is no such folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def refuse_adapter(folder: Path) -> None:
    """Refuses a folder with an adapter.

    Raises:
      InputError: the folder has one; names its files.
    """
    if adapter := matching(file_names(folder), ADAPTER):
        raise InputError(
            f"{folder} has an adapter ({', '.join(adapter)}), which is not read: merge it into its "
            "base model, as PEFT's merge_and_unload and rl4p.export without adapter=true do."
        )


def check_files(folder: Path) -> None:
    """Checks that the files of a folder are one model, and names the files that are not read.

    Raises:
      InputError: the folder has an adapter, or weights of two models.
    """
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
    known = matching(names, (*READ, *(name for group in HARMLESS.values() for name in group)))
    if others := [name for name in names if name not in {*known, *shards}]:
        log.warning("%s has files that are not read: %s.", folder, ", ".join(others))


def matching(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def tokenizer_files(folder: Path) -> list[Path]:
    """Returns the files of a folder's tokenizer and chat templates, in the order of their names."""
    return [
        folder / name
        for name in matching(sorted(p.name for p in folder.iterdir()), TOKENIZER_FILES)
    ]
