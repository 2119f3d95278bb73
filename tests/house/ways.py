"""The files of the package that a value passes on its way, in a small run.

A file counts if one of its functions is called with the value. Functions that JAX traces count like
others. A file that passes on what holds the value, and never touches it, does not count.

* A prompt, while a run is built and trains one step: an object of one of `OF_PROMPTS`, alone or as
  an item of a list or tuple.
* An option, meanwhile: its number, which nothing else has, its name in a mapping or a word, or an
  object that holds it.
* A request of an agent, from its client's call to the answer: a text with `MARK`, which is in its
  message, alone or within up to four containers or objects, or an object of `OF_REQUESTS`.
* Parameters, from the call of a sampler until a vLLM server (a double of it) has them: arrays of
  two dimensions, within up to three containers, or an object of `OF_WEIGHTS`. The score of a probe
  by the sampler, and what the double does, are not on the way.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any
from urllib.request import Request, urlopen

from tests.house.size import PACKAGE, ROOT

OF_PROMPTS = {
    *("Question", "Prompt", "Request", "TokenSequence", "Completion", "Episode"),
    *("Trajectories", "Rewards", "TrainingBatch"),
}
OF_REQUESTS = {"TokenSequence", "Submission", "Chunk", "Completion", "Request"}
OF_WEIGHTS = {"Weights", "NewWeights", "Exported", "TrainState"}
OPTION, NUMBER = "clip_high", 0.28125
MARK = "mark-of-the-request"


def is_prompt(value: Any) -> bool:
    """Returns whether a value is a prompt, what was made of it, or a sequence of such."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return type(value).__name__ in OF_PROMPTS


def is_option(value: Any) -> bool:
    """Returns whether a value is the option, or holds it."""
    if isinstance(value, float):
        return value == NUMBER
    if isinstance(value, str):
        return OPTION in value
    if isinstance(value, list | tuple):
        return any(isinstance(x, str | float) and is_option(x) for x in value)
    if isinstance(value, Mapping):
        return OPTION in value
    return OPTION in getattr(value, "__dict__", {})


def inside(value: Any, depth: int) -> Iterator[Any]:
    """Yields a value, and what is within so many containers or objects around it."""
    yield value
    if not depth or isinstance(value, str | bytes | int | float | type):
        return
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | deque):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    for part in list(parts)[:50]:
        yield from inside(part, depth - 1)


def is_request(value: Any) -> bool:
    """Returns whether a value holds the text of the agent's request, or is made of it."""
    return any(
        type(part).__name__ in OF_REQUESTS
        or (isinstance(part, str) and MARK in part)
        or (isinstance(part, bytes | bytearray) and MARK.encode() in part)
        for part in inside(value, 4)
    )


def is_weights(value: Any) -> bool:
    """Returns whether a value holds parameters or is an order to install some."""
    return any(
        type(part).__name__ in OF_WEIGHTS or getattr(part, "ndim", 0) >= 2
        for part in inside(value, 3)
    )


class Asking:
    """A program with one request, which carries the mark."""

    asking = False

    def __call__(self, episode: Any) -> float:
        message = {"role": "user", "content": MARK}
        body = json.dumps({"model": episode.model, "messages": [message]}).encode()
        url = f"{episode.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {episode.api_key}", "Content-Type": "application/json"}
        Asking.asking = True
        with urlopen(Request(url, body, headers)) as response:
            response.read()
        Asking.asking = False
        return 1.0


def passed(
    main: Callable[[], None], value: Callable[[Any], bool], without: Collection[str] = ()
) -> set[str]:
    """Returns the files whose functions are called with a value while `main` runs.

    What functions of the names `without` call does not count.
    """
    files: set[str] = set()

    def counts(frame: FrameType | None) -> bool:
        while frame is not None and without:
            if frame.f_code.co_name in without:
                return False
            frame = frame.f_back
        return True

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        file = code.co_filename.removeprefix(f"{ROOT}/")
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[:count]
        if file in files or not any(value(frame.f_locals.get(name)) for name in names):
            return
        if counts(frame):
            files.add(file)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files


def way(name: str) -> set[str]:
    """Returns the files of a way, by a run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.house.ways", name, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line[4:] for line in done.stdout.splitlines() if line.startswith("way ")}


def train(folder: str, *words: str) -> Callable[[], None]:
    """Returns a small run of one step."""
    from experiments.drills.small_run import SMALL
    from rl4p.train import main

    sys.argv = ["train", *SMALL, "steps=1", f"hydra.run.dir={folder}/run", *words]
    return main


def to_server(folder: str) -> set[str]:
    """Returns the files on the way of parameters from a sampler to a server of vLLM."""
    import jax

    from rl4p.configuration import compose, instantiate
    from tests.support.remote_engines import engine_on, of_step, requests_of

    small = ("model.width=32", "model.layers=1", "model.heads=2", "model.feed_forward_width=64")
    config = compose(["model=scratch", *small, "mesh=single", "tracker=none"])
    policy, params = instantiate(config.model).build(instantiate(config.mesh), jax.random.key(3))
    patient = {"update_seconds": 600.0, "patience": 600.0}  # the profile slows all down

    def main() -> None:
        with engine_on("vllm", policy, params, 1, folder, **patient) as (engine, _):
            engine.publish(of_step(params, 1), 1)
            engine.complete(requests_of([[1, 2, 3]], 1, 0))

    return passed(main, is_weights, without=("expected", "handle", "checksums", "for_sampling"))


def main() -> None:
    """Prints the files of one way."""
    import tests.conftest  # noqa: F401  the environment of tests, before JAX is used

    name, folder = sys.argv[1:]
    if name == "prompt":
        files = passed(train(folder), is_prompt)
    elif name == "option":
        files = passed(train(folder, f"update.{OPTION}={NUMBER}"), is_option)
    elif name == "parameters":
        files = to_server(folder)
    else:
        asks = f"rollout.agent._target_={__spec__.name}.Asking"
        words = ("rollout=agent", asks, "trusted_targets=[tests.house]", "group_size=2")
        main = train(folder, *words, "prompts_per_step=1", "max_response_tokens=64")
        from tests.house.ways import Asking as Imported  # this module runs as __main__

        files = passed(main, lambda value: Imported.asking and is_request(value))
    for file in sorted(files):
        print("way", file)


if __name__ == "__main__":
    main()
