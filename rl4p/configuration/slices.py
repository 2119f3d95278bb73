"""The options of the group `mesh` that name a slice, such as v5p_64: they need no YAML files."""

from collections.abc import Mapping
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration.chips import CHIPS, GIB, slice_of, topology_of

GROUP = "mesh"
SMALL = 32 * GIB  # chips with at most this memory also divide heads, feed-forward and vocabulary
HOST = 8  # GPUs that are linked with one another


class SliceSource(ConfigSource):
    """A source of configurations with one option for each slice of `rl4p.configuration.chips`."""

    def __init__(self) -> None:
        super().__init__(provider="slices", path="slices://rl4p.configuration.chips")

    @staticmethod
    def scheme() -> str:
        return "slices"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == GROUP

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return group == GROUP and topology_of(name.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        name = config_path.rpartition("/")[2].removesuffix(".yaml")
        config = OmegaConf.create({"defaults": ["auto", "_self_"], **options(name)})
        return ConfigResult(
            provider=self.provider, path=self.full_path(), config=config, header={"package": None}
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Returns one slice of each chip: all of them would fill the help."""
        if config_path != GROUP or results_filter == ObjectType.GROUP:
            return []
        return [
            f"{name}_{max(n for n in chip.slices if n <= HOST)}" for name, chip in CHIPS.items()
        ]


def options(name: str) -> dict[str, Any]:
    """Returns the options of `Mesh` that a slice's name stands for."""
    topology = topology_of(name)
    assert topology is not None  # `is_config`
    chips = slice_of(topology)
    dp = tp = 1
    if chips.chip.platform == "gpu":
        dp = max(1, chips.count // HOST)  # parameters are gathered only from the same host
    elif chips.chip.memory <= SMALL:
        tp = min(4, chips.count)
    return {"dp": dp, "fsdp": -1, "tp": tp, "topology": topology}


def unknown_slice(name: str) -> InputError | None:
    """Returns the error for a slice that does not exist; None if the name is not of a chip."""
    chip, count = (name, "0") if name in CHIPS else name.rpartition("_")[::2]
    if chip not in CHIPS or not count.isdigit():
        return None
    sizes = list(CHIPS[chip].slices)
    near = min(sizes, key=lambda size: abs(size - int(count)))
    return InputError(
        f"mesh={name} does not exist: slices of {chip} have {', '.join(map(str, sizes))} chips; "
        f"did you mean mesh={chip}_{near}?"
    )


def refuse_sizes_beside_a_shape(config: DictConfig, given: Mapping[str, Any]) -> None:
    """Checks that the command line gives no size of an axis that `mesh.shape` replaces.

    The sizes of a preset, such as mesh=v5p_8, are replaced without a word.

    Args:
      given: the values of the command line, by key.

    Raises:
      InputError: the command line gives such a size.
    """
    shape = OmegaConf.select(config, "mesh.shape", default=None)
    for key in ("mesh.dp", "mesh.fsdp", "mesh.tp"):
        if shape is not None and key in given:
            raise InputError(
                f"{key} has no effect beside mesh.shape={shape}: give all sizes there, or add "
                "mesh.shape=null."
            )
