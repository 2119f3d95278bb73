"""Prints the table of docs/model_and_data.md that says what works with which layers:

python -m tests.golden.table
"""

from rl4p.model.attention import obstacle
from rl4p.model.decoder import DecoderConfig
from tests.golden.cases import CASES, decoder_config

HEADER = (
    "| layers | `model_type` | a sequence's memory | kernels | `mesh.cp`, drafts "
    "| `nf4` |\n|---|---|---|---|---|---|"
)
MIXERS = {
    "attention": "attention",
    "latent": "latent attention",
    "delta": "gated delta rule",
    "mamba": "Mamba-2",
    "convolution": "short convolution",
}
MEMORY = {
    "attention": "keys and values",
    "latent": "latents",
    "delta": "a state",
    "mamba": "a state",
    "convolution": "the last inputs",
}


def layers(config: DecoderConfig) -> tuple[tuple[str, ...], bool]:
    """Returns the mixers of a decoder, and whether it has experts."""
    mixers = {kind.mixer for kind in config.kinds}
    return tuple(name for name in MIXERS if name in mixers), bool(config.experts)


def kernels(configs: list[DecoderConfig]) -> str:
    """Returns the kernels that every model has, and those that some have, with heads of 64."""
    found = []
    for kernel, platform in (("splash", "tpu"), ("cudnn", "gpu")):
        free = [obstacle(kernel, config, "bfloat16", platform) is None for config in configs]
        found += [f"`{kernel}`" if all(free) else f"`{kernel}` for some"] if any(free) else []
    return ", ".join(found) or "-"


def table() -> str:
    """Returns one line for each combination of mixers, with experts and without."""
    rows: dict[tuple, dict[str, list[DecoderConfig]]] = {}
    for case in CASES:
        config = decoder_config(case)
        rows.setdefault(layers(config), {}).setdefault(config.family, []).append(config)
    lines = [HEADER]
    for (mixers, experts), families in sorted(rows.items(), key=lambda row: list(row[0])):
        configs = [config for several in families.values() for config in several]
        state = {config.has_state for config in configs}
        assert len(state) == 1
        lines.append(
            f"| {', '.join(MIXERS[x] for x in mixers)}{' and experts' if experts else ''} "
            f"| {', '.join(f'`{name}`' for name in families)} "
            f"| {', '.join(dict.fromkeys(MEMORY[x] for x in mixers))} | {kernels(configs)} "
            f"| {'no' if state.pop() else 'yes'} | {'no' if experts else 'yes'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
