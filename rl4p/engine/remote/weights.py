"""New weights of servers: the folder they are written to, and the probe of their arrival."""

import atexit
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Params
from rl4p.distributed.partition import decoding_dtype
from rl4p.model.families.wrappers import name_in_files
from rl4p.model.huggingface import write_adapter, write_configs
from rl4p.model.model_tensors import (
    EMBEDDING,
    HEAD,
    CopiedTensor,
    model_tensors,
    other_tensors,
)
from rl4p.model.policy import Policy
from rl4p.model.tensor_files import (
    THREADS,
    WrittenFiles,
    checksums_of,
    linked,
    stored_tensors,
    write_tensors,
)
from rl4p.model.tokenizer import save_tokenizer

SHARD_BYTES = 2**28

SequenceScore = Callable[[Policy, Sequence[int], Params], np.ndarray]

TEXT = "If 38 + 47 = 85, is 6.02 one of 19 (or so) answers that people gave in 1969? "
LENGTH = 32
STALE = 0.25  # share of the change to new weights, up to which they did not arrive
ERRORS = 5  # standard errors that the share must be below 1, since engines round differently
LARGEST_GROWTH = 100  # of a server's gap over that of the first weights, which is its rounding
SMALLEST_GAP = 1e-4  # that is more than rounding, whatever the gap of the first weights


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Weights in a folder that is complete and never changes.

    Attributes:
      path: the absolute path of the folder.
      label: the name of the weights, such as the step that they come from.
      checksums: the CRC-32 of each tensor as it is in the files, by the tensor's name.
      head: a folder with the output head alone, for tied embeddings; None if it is not written.
    """

    path: Path
    label: str
    checksums: dict[str, str]
    head: Path | None = None

    def sha256(self) -> dict[str, str]:
        """Returns the SHA-256 of each tensor, read from the files."""
        stored = stored_tensors(self.path)
        return checksums_of([CopiedTensor(name, x) for name, x in stored.items()], "sha256")


class WeightsFolder:
    """A new folder within `parent` that holds the weights of one run, one subfolder each.

    A subfolder appears once it is complete. Transformers, vLLM and SGLang can open it: it has
    config.json, generation_config.json, safetensors and the tokenizer. Adapters are merged, and the
    matrices have the dtype of activations, as in the sampler of this process. A file whose tensors
    have not changed is a hard link to the same file of the weights before.

    A process that is killed leaves its folder behind.
    """

    def __init__(
        self,
        parent: Path,
        *,
        shard_bytes: int = SHARD_BYTES,
        repeats_head: bool = False,
        adapters: bool = False,
        synced: bool = True,
    ) -> None:
        """Creates the folder, and `parent` if it is not there.

        Args:
          repeats_head: whether tied embeddings are written a second time, as the output head.
          adapters: whether the adapters alone are written, in the format of PEFT.
          synced: whether to wait until the files are on the disk: servers of other machines may
            read it, those of this machine see what was written.

        Raises:
          RunError: the folder cannot be created.
        """
        self.path = parent.expanduser().absolute() / f"weights-{token_hex(8)}"
        self.shard_bytes, self.repeats_head, self.adapters = shard_bytes, repeats_head, adapters
        self.options: Any = {"synced": synced, "threads": THREADS}
        self.count = 0
        self.held: list[Exported] = []
        self.newest: WrittenFiles | None = None
        self.tokenizer: Any = None
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"The folder for weights cannot be created: {error}.") from error
        atexit.register(self.close)

    def write(self, policy: Policy, params: Params, label: str) -> Exported:
        """Writes the trained parameters; the host holds one tensor more than them at a time.

        Raises:
          InputError: the label cannot be part of a folder's name.
          RunError: the weights could not be written. Nothing of them remains.
        """
        if not re.fullmatch(r"\w[\w.+-]*", label, re.ASCII):
            raise InputError(
                f"The label {label!r} of weights must consist of letters, digits and any of ._+-."
            )
        self.count += 1  # a path is never used twice, because a server may remember it
        path = self.path / f"{self.count}-{label}"
        unfinished = self.path / f".{path.name}"
        files = WrittenFiles(folder=path, checksums={})
        try:
            unfinished.mkdir()
            if self.adapters:
                trained = {name: x for name, x in params.items() if name != "critic"}
                write_adapter(unfinished, policy.decoder, trained, policy.base)
            else:
                files = self.write_model(unfinished, policy, params)
            unfinished.rename(path)
        except OSError as error:
            raise RunError(
                f"The weights {label} could not be written to {self.path}: {error}."
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.newest = replace(files, folder=path)
        checksums = {name: x for file in files.checksums.values() for name, x in file.items()}
        head = path / ".head"
        exported = Exported(
            path=path, label=label, checksums=checksums, head=head if head.is_dir() else None
        )
        self.held.append(exported)
        return exported

    def write_model(self, folder: Path, policy: Policy, params: Params) -> WrittenFiles:
        """Writes merged weights, and what else a server needs to open the folder."""
        dtype_of = partial(decoding_dtype, dtype=policy.decoder.dtype)
        wrapper, tied = policy.decoder.config.wrapper, policy.decoder.config.tied_embedding
        tensors = model_tensors(policy.decoder, policy.merged(params), dtype_of)
        if policy.wrapper is not None:  # a server may want each tensor that it has
            tensors += other_tensors(policy.wrapper, policy.decoder.config)
        files = write_tensors(folder, tensors, self.shard_bytes, self.newest, **self.options)
        if self.repeats_head and tied:
            names = [tensor.name for tensor in tensors]
            head = copy(tensors[names.index(name_in_files(wrapper, EMBEDDING))])
            head.name = name_in_files(wrapper, HEAD)
            (folder / ".head").mkdir()
            write_tensors(folder / ".head", [head], self.shard_bytes, **self.options)
        write_configs(
            folder,
            policy.decoder,
            policy.end_ids,
            pad_id=policy.pad_id,
            kept=policy.kept,
            dtype=str(tensors[0].dtype),
        )
        self.add_tokenizer(folder, policy)
        return files

    def add_tokenizer(self, folder: Path, policy: Policy) -> None:
        """Adds the tokenizer's files, which are written once and then linked."""
        once = self.path / ".tokenizer"
        if self.tokenizer is not policy.tokenizer:
            shutil.rmtree(once, ignore_errors=True)
            try:
                save_tokenizer(policy.tokenizer, once)
            except OSError:
                shutil.rmtree(once, ignore_errors=True)
                raise
            self.tokenizer = policy.tokenizer
        shutil.copytree(once, folder, copy_function=link_or_copy, dirs_exist_ok=True)

    def keep(self, labels: Collection[str]) -> None:
        """Deletes all weights except the newest with each of these labels."""
        newest = {exported.label: exported.path for exported in self.held}
        paths = {path for label, path in newest.items() if label in labels}
        for exported in self.held:
            if exported.path not in paths:
                shutil.rmtree(exported.path, ignore_errors=True)
        self.held = [exported for exported in self.held if exported.path in paths]

    def close(self) -> None:
        atexit.unregister(self.close)
        self.held, self.newest, self.tokenizer = [], None, None
        shutil.rmtree(self.path, ignore_errors=True)


def link_or_copy(file: str, new: str) -> None:
    if not linked(Path(file), Path(new)):
        shutil.copyfile(file, new)


class Probe:
    """A fixed sequence whose log-probabilities depend on all weights.

    Args:
      score: returns float32 [n - 1], log p(token t | tokens before t) of tokens 1 to n - 1 of a
        sequence, by the trainer's forward pass, at temperature 1 over the whole vocabulary.
      limit: the largest error of a server's log-probability of one token; None for any.

    Attributes:
      tokens: the token ids, 32 or as many as the model has positions.
    """

    def __init__(self, policy: Policy, score: SequenceScore, *, limit: float | None = None) -> None:
        tokenizer: Any = policy.tokenizer
        ids: Any = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        length = min(LENGTH, policy.decoder.config.max_positions)
        ids = ids * -(-length // max(1, len(ids))) or list(range(length))
        self.policy, self.score, self.limit = policy, score, limit
        self.tokens: list[int] = ids[:length]

    def expected(self, params: Params) -> np.ndarray:
        return self.score(self.policy, self.tokens, params)

    def problem(
        self,
        logprobs: Sequence[float | None] | np.ndarray,
        expected: np.ndarray,
        previous: np.ndarray | None,
        rounding: float | None = None,
    ) -> str | None:
        """Returns what is wrong with a server's log-probabilities, or None.

        Args:
          logprobs: the server's log-probabilities of tokens 1 to n - 1.
          expected, previous: the same under the weights that it has loaded, and under the weights
            before.
          rounding: the largest gap of this server under the first weights that it had.
        """
        values = np.array([np.nan if x is None else x for x in logprobs], np.float64)
        if values.shape != expected.shape:
            return (
                f"it returned {len(values)} log-probabilities of the probe's tokens, not "
                f"{len(expected)}"
            )
        if not np.isfinite(values).all():
            worst = int(np.argmin(np.isfinite(values)))
            return f"the log-probability of the probe's token {worst + 1} is {values[worst]}"
        if previous is not None and (share := change_made(values, previous, expected)) is not None:
            change = float(np.mean(np.abs(expected - previous)))
            return (
                "it still decodes with the weights before: the log-probabilities of the probe made "
                f"{max(share, 0):.0%} of the change to the new weights, which is {change:.3g} for "
                "each token"
            )
        gaps = np.abs(values - expected)
        worst = int(np.argmax(gaps))
        limit, why = self.limit, ""
        if limit is not None and rounding is not None:
            allowed = max(LARGEST_GROWTH * rounding, SMALLEST_GAP)
            if allowed < limit:
                limit = allowed
                why = f", since the largest was {rounding:.3g} with its first weights"
        if limit is not None and gaps[worst] > limit:
            return (
                f"the log-probability of the probe's token {worst + 1} is {values[worst]:.6g}, "
                f"but {expected[worst]:.6g} by the new weights: the gap {gaps[worst]:.3g} is above "
                f"the limit {limit:g}{why}"
            )
        return None

    def has_old_head(
        self, logprobs: np.ndarray, params: Params, expected: np.ndarray, before: Path
    ) -> bool:
        """Returns whether a server has the output head of older weights, and otherwise new ones.

        Args:
          logprobs: the server's log-probabilities of tokens 1 to n - 1.
          params, expected: the new weights, and the log-probabilities under them.
          before: the folder of the older weights.
        """
        policy, config = self.policy, self.policy.decoder.config
        name = name_in_files(config.wrapper, EMBEDDING if config.tied_embedding else HEAD)
        stored = stored_tensors(before)[name]
        rows = [piece for _, piece in stored.pieces(slice(0, stored.shape[0]))]
        untied = replace(policy.decoder, config=replace(config, tied_embedding=False))
        old = params | {"head": np.concatenate(rows).astype(params["embedding"].dtype)}
        mixed = self.score(replace(policy, decoder=untied), self.tokens, old)
        return bool(np.abs(logprobs - mixed).mean() < STALE * np.abs(expected - mixed).mean())


def change_made(logprobs: np.ndarray, previous: np.ndarray, expected: np.ndarray) -> float | None:
    """Returns the share of the change to new weights that a stale server made; None if not stale.

    The share is the slope of logprobs - previous on expected - previous: 0 with the old weights, 1
    with the new ones. In bfloat16 the change of a small step may be less than the rounding of one
    token, but the slope averages over tokens. Nothing is concluded from a change that is too small.
    """
    change = np.float64(expected) - previous
    square = float(np.sum(change**2))
    if square == 0:
        return None
    share = float(np.sum((logprobs - previous) * change)) / square
    rest = logprobs - previous - share * change
    error = float(np.sqrt(np.mean(rest**2) / square))
    return share if share <= STALE and share + ERRORS * error < 1 else None
