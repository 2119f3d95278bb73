"""Questions from a data set of the Hugging Face library `datasets`, and GSM8K."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import repeat
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.configuration.capability import ReadPath
from rl4p.data.fields import filled_rows, of_fields
from rl4p.data.files import BATCH, JSONLines
from rl4p.data.rows import Rows

log = logging.getLogger(__name__)

SECONDS = 10.0  # timeout of the hub's first answer
SAVED = ("dataset_dict.json", "state.json")  # in folders that `save_to_disk` wrote


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Rows):
    """A data set of the hub, or of a folder.

    Data sets from the hub stay in its cache (HF_HOME), which is used without a network. No code of
    a data set is executed. The library reads numbers of JSON with 64 bits; `JSONLines` keeps all of
    their digits. `Rows` explains the other options.

    Attributes:
      path: the id of a data set on the hub, such as `openai/gsm8k`; or a folder that `save_to_disk`
        wrote; or a folder with files of Parquet, CSV or JSON lines; or the address of such a folder
        in an object store.
      subset: the name of a subset, which the hub also calls a configuration; None is the only one.
      split: the split to train on; `train[:10%]` is a part of it.
      held_out_split: the split to evaluate on. `evaluation.prompts` limits how much of it is used.
      revision: a branch, a tag or a commit of the data set on the hub; None is its newest.
    """

    training_key: ClassVar[str] = "split"
    held_out_key: ClassVar[str] = "held_out_split"
    adds_nulls: ClassVar[bool] = True

    path: ReadPath
    subset: str | None = None
    split: str = "train"
    held_out_split: str | None = None
    revision: str | None = None
    task: str = "huggingface"

    def origin(self, key: str) -> str:
        return f"data.path={self.path} data.{key}={getattr(self, key)}"

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        split = getattr(self, key)
        place = f"{self.path} ({split})"
        rows = self.load(split)
        columns = self.columns(rows.column_names, place)
        # Columns that are not selected are not decoded; images would take most of the time.
        media = self.media_in(columns)
        flags = flags_of(rows, media)
        rows = rows.select_columns([name for name in columns if name not in media])
        convert = of_fields({field.name: field.type for field in rows.features.arrow_schema})
        for i, (row, own) in enumerate(zip(rows, flags, strict=False), 1):
            yield f"{place}, row {i}", (convert(row) if convert else row) | own

    def load(self, split: str) -> Any:
        """Returns a split as a `datasets.Dataset`."""
        if find_spec("datasets") is None:
            raise InputError(
                f"data.path={self.path} needs the library datasets: pip install 'rl4p[datasets]'."
            )
        # Imported here, because it takes a second and most runs do not need it.
        import datasets
        from datasets.exceptions import DatasetsError

        folder = local_copy(self.path)
        if folder.is_dir() and self.revision is not None:
            raise InputError(
                f"data.revision={self.revision} has no effect on the folder data.path={self.path}: "
                "leave it out."
            )
        if not folder.exists():
            use_cache_if_offline(self.path)
        try:
            if any((folder / name).is_file() for name in SAVED):
                data: Any = datasets.load_from_disk(folder)
                if self.subset is not None:
                    raise ValueError("the folder was written by save_to_disk and has no subsets.")
                splits = data if hasattr(data, "keys") else {str(data.split or "train"): data}
                if split not in splits:
                    raise ValueError(f"its splits are {', '.join(splits)}.")
                return splits[split]
            options = {"split": split, "revision": self.revision}
            rows: Any = datasets.load_dataset(str(folder), self.subset, **options)
            if rows.builder_name == "csv":
                # As texts: pandas would read 0755 as 755, and NA as null.
                text = datasets.Features(dict.fromkeys(rows.column_names, datasets.Value("string")))
                options |= {"features": text, "keep_default_na": False}
                rows = datasets.load_dataset(str(folder), self.subset, **options)
            return rows
        except (DatasetsError, OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".") + "."
            if isinstance(error, ConnectionError):
                reason = (
                    "the hub cannot be reached, and the local cache does not have it. Set data.path"
                    " to a file or a folder on this machine."
                )
            raise InputError(
                f"data.path={self.path} (data.subset={self.subset or 'null'}, split {split}) "
                f"cannot be loaded: {reason}"
            ) from error


def flags_of(rows: Any, names: list[str]) -> Iterator[dict[str, bool]]:
    """Yields for each row which of these columns have a value, without decoding pictures."""
    if not names:
        yield from repeat({})
    for batch in rows.select_columns(names).with_format("arrow").iter(BATCH):
        columns = [filled_rows(batch.column(name)) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def use_cache_if_offline(path: str) -> None:
    """Makes the library read its cache alone if the hub does not answer one request.

    By itself it repeats its requests for half a minute for each split.
    """
    from datasets import config
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE or config.HF_HUB_OFFLINE:
        return
    try:
        HfApi().dataset_info(path, timeout=SECONDS)
    except HfHubHTTPError as error:
        log.info("The hub answered about %s: %s", path, error)  # `load_dataset` says more
    except Exception as error:  # noqa: BLE001 - of the HTTP library, which the version decides
        log.info("The hub does not answer, so that only its cache is read: %r", error)
        constants.HF_HUB_OFFLINE = True  # read at each request
        config.HF_HUB_OFFLINE = True


HUB = HuggingFace(path="openai/gsm8k", subset="main", held_out_split="test")


@dataclass(frozen=True, kw_only=True)
class GSM8K(JSONLines):
    """GSM8K (2110.14168): 7,473 questions to train on, and 1,319 to evaluate on.

    The files `train.jsonl` and `test.jsonl` and the hub have the same questions, with the same ids.
    `Rows` and `Files` explain the options.

    Attributes:
      path: the file `train.jsonl`; None fetches the data set from the hub (extra `datasets`).
      held_out_path: the file `test.jsonl`; None takes the hub's test split if the training
        questions are the hub's, unless `held_out_size` is set.
    """

    path: ReadPath | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    task: str = "gsm8k"

    @property
    def holds_out_rows(self) -> bool:
        return self.held_out_path is not None or (self.path is None and self.held_out_size is None)

    def origin(self, key: str) -> str:
        return super().origin(key) if getattr(self, key) else f"{HUB.path} on the hub"

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        if getattr(self, key) is not None:
            return super().table(key)
        return HUB.table("split" if key == self.training_key else "held_out_split")
