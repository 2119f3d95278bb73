"""A policy from a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4p.errors import InputError
from rl4p.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_json, read_params
from rl4p.model.policy import Policy
from rl4p.model.tokenizer import load_tokenizer
from rl4p.types import Array, Params

SHIPPED = {"rl4p/tiny": Path(__file__).parent / "tiny"}


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """config.json, safetensors, tokenizer.json and chat template of one folder.

    Attributes:
      path: the folder; `rl4p/tiny` is the policy that comes with the package.
      dtype: of activations.
      param_dtype: of the parameters, whatever the files hold.
      remat: recompute layers in the backward pass: less memory, about a third more time.
    """

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    remat: bool = False

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """The policy and its parameters on the mesh; the key is for models made from scratch."""
        folder = SHIPPED.get(self.path, Path(self.path))
        if not folder.is_dir():
            raise InputError(
                f"model.path={self.path} is not a folder; give one with config.json, safetensors "
                f"and tokenizer.json, or one of {', '.join(SHIPPED)}."
            )
        decoder = Decoder(config=read_config(folder), dtype=self.dtype, remat=self.remat)
        tokenizer: Any = load_tokenizer(folder)  # its stubs give a token id any of six types
        if len(tokenizer) > decoder.config.vocabulary:
            raise InputError(
                f"The tokenizer in {folder} has {len(tokenizer)} tokens, but the embedding only "
                f"{decoder.config.vocabulary} rows."
            )
        params = mesh.replicate(read_params(folder, decoder, self.param_dtype))
        # The tokenizer's own end token stands first: demonstrations end with it.
        ends = dict.fromkeys((tokenizer.eos_token_id, *read_end_ids(folder)))
        policy = Policy(
            decoder=decoder,
            tokenizer=tokenizer,
            mesh=mesh,
            end_ids=tuple(ends),
            pad_id=tokenizer.pad_token_id,
        )
        return policy, params


def read_end_ids(folder: Path) -> tuple[int, ...]:
    """All end tokens that generation_config.json names; none without the file."""
    path = folder / "generation_config.json"
    ends = read_json(path).get("eos_token_id") if path.is_file() else None
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
