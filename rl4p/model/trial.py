"""A trial of tokenizers and chat templates of others, before they are used in this process.

A chat template is a program, and a normalizer or a pattern of a tokenizer can take any time and
memory for a short text: none of them can be stopped within a process. So they are tried first in a
process of their own: when they are loaded, with texts that are hard for patterns, and again with
the first conversation that a run gives them. A file with the same content is tried once.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rl4p.base.errors import InputError
from rl4p.base.storage import cache_folder

LOADING, SECONDS = 20, 5  # of processor time: to load the files, and for the short texts
PATIENCE = 60.0  # seconds of a clock, with the start of the process
MEMORY = 3 * 2**30  # bytes; the largest vocabularies take a third to load

PROBES: tuple[tuple[str, ...], ...] = (  # the roles of conversations
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant"),
)
TEXTS = (
    *("a" * 4000, "x" * 4000 + "!", "0" * 4000 + "x", " " * 4000 + "x", "\n" * 4000, "aA" * 2000),
    *("a " * 2000 + "!", "1+1=2 " * 700, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 2000, "(" * 4000),
    "".join(map(chr, range(32, 0x2FF))),
)
# Files of a model that no tokenizer reads, which differ between checkpoints.
OF_THE_MODEL = ("config.json", "generation_config.json", "adapter_config.json")
Case = Mapping[str, Any]
_used: WeakSet[Any] = WeakSet()  # the tokenizers that have been tried with conversations


def try_loading(folder: Path, chat_template: str | None = None) -> None:
    """Tries the tokenizer of a folder, with a chat template in place of its own unless it is None.

    Raises:
      InputError: a short text takes it too much time or memory.
    """
    options: dict[str, Any] = {"add_generation_prompt": True}
    if chat_template is not None:
        options["chat_template"] = chat_template
    cases = []
    for roles in PROBES:
        messages = [{"role": role, "content": "What is 12 + 30?"} for role in roles]
        cases.append({"messages": messages, "tools": None, "options": options})
    run_trial(folder, cases, TEXTS)


def try_first_use(tokenizer: Any, cases: Sequence[Case]) -> None:
    """Tries the first conversations that a tokenizer of `load_tokenizer` gets, as `try_loading`.

    A case has "messages", "tools" and "options" of `apply_chat_template`.
    """
    folder = Path(tokenizer.name_or_path)
    if tokenizer not in _used and (folder / "tokenizer.json").is_file():
        if isinstance(template := tokenizer.chat_template, str):  # it may not be of the folder
            own = {"chat_template": template}
            cases = [{**case, "options": own | dict(case["options"])} for case in cases]
        run_trial(folder, cases, ())
        _used.add(tokenizer)


def run_trial(folder: Path, cases: Sequence[Case], texts: Sequence[str]) -> None:
    """Renders conversations and encodes texts in a process with limits, unless that was done."""
    if folder.resolve().parent == Path(__file__).resolve().parent:  # a model of the package
        return
    patterns = ("*.json", "*.jinja", "additional_chat_templates/*")
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    read = (file for file in files if file.is_file() and file.name not in OF_THE_MODEL)
    content = [file.read_bytes() for file in read]
    request = {"cases": cases, "texts": texts, "memory": MEMORY, "seconds": [LOADING, SECONDS]}
    line = json.dumps(request, default=str)
    digest = hashlib.sha256(b"\0".join([line.encode(), *content])).hexdigest()
    mark = cache_folder("tried") / digest
    if mark.exists():
        return
    command = [sys.executable, str(Path(__file__).with_name("trial_child.py"))]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request | {"folder": str(folder)}, default=str),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        ended = done.returncode == 0 and done.stdout.strip() == "tried"
    except subprocess.TimeoutExpired:
        ended = False
    if not ended:
        raise InputError(
            f"The tokenizer or the chat template in {folder} is refused: a short text takes it "
            f"more than {SECONDS} s or {MEMORY // 2**20} MiB."
        )
    with suppress(OSError):  # the next start tries it again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
