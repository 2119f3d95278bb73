"""The job: a policy, its scheduler, and the server in front of it."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import uvloop
from omegaconf import DictConfig

from rl4p.base.errors import InputError, RunError
from rl4p.base.terminal import write
from rl4p.base.types import Sampling
from rl4p.command import compose
from rl4p.configuration import instantiate
from rl4p.data.prompts import QuestionTemplate
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import Chunk, TokenSequence, key_data
from rl4p.engine.serving.active_request import ReadyQueue
from rl4p.engine.serving.app import Guard, ServerState
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.engine.serving.web_server import address_of, end_process, listening, run
from rl4p.loop.stopwatch import keep_programs
from rl4p.runs.folder import run_folder
from rl4p.runs.policy import load_policy
from rl4p.tools.serving.app import ServedApp
from rl4p.tools.serving.options import ServeOptions, read_options

Messages = list[Mapping[str, Any]]

OF_RUN = ("seed", "model")
WARM_UP_SECONDS = 600.0
# The scheduler's thread must not wait long for the event loop before it starts the next call.
SWITCH_SECONDS = 0.0005


def serve(lines: Sequence[str]) -> None:
    """Serves the model of a command line until SIGTERM or Ctrl-C, which end the process."""
    line = read_options(lines)
    options = line.options
    token = options.token()
    parts = (*OF_RUN, "data") if options.prompting else OF_RUN
    config = compose(line.overrides, run=options.run, parts=parts, config_dir=line.config_dir)
    if {config.mesh.coordinator, config.mesh.processes, config.mesh.process} != {None}:
        raise InputError(
            "rl4p.serve runs in one process: leave mesh.coordinator, mesh.processes and "
            "mesh.process out."
        )
    if config.mesh.sampling_tp is not None:
        raise InputError(
            f"rl4p.serve only samples: write mesh.tp={config.mesh.sampling_tp} in place of "
            "mesh.sampling_tp (mesh.tp must divide the query heads and the KV heads)."
        )
    if (cp := instantiate(config.mesh).configured_sizes()["cp"]) != 1:
        raise InputError(
            f"rl4p.serve only samples, and mesh.cp={cp} divides only updates and scores: leave "
            "cp out."
        )
    add_prompting = prompting_of(config) if options.prompting else list
    with closing(listening(options.host, options.port)) as bound:
        keep_programs()
        folder = None if options.run is None else run_folder(options.run)
        policy, params, step = load_policy(
            config, folder, step=options.chosen, average=options.average
        )
        policy = policy.with_kv_cache(options.kv_cache_dtype)
        source = str(folder or config.model.get("path") or config.model._target_)
        version = str(step or 0)
        scheduler = Scheduler(policy, params, version, slots=options.slots)
        del params
        sys.setswitchinterval(SWITCH_SECONDS)
        with closing(scheduler):
            warm_up(scheduler, policy.end_ids[0])

            async def main() -> None:
                server = ServerState(
                    policy=policy,
                    scheduler=scheduler,
                    detokenizer=Detokenizer(policy.tokenizer),
                    queue=ReadyQueue(asyncio.get_running_loop()),
                    name=options.name or name_of(options, config),
                    source=source,
                    address=address_of(bound, options.host),
                    slots=options.slots,
                    waiting=options.waiting,
                    add_prompting=add_prompting,
                )
                app = ServedApp(
                    server, Guard(token=token), most_bytes=options.body_mebibytes * 2**20
                )

                def ready() -> None:
                    write(f"{server.name}, weight version {version}, is served at {server.address}")

                def end() -> None:
                    server.closing = True
                    scheduler.abort_now()

                await run(app, bound, ready, end)
                app.updates.close()

            uvloop.run(main())
    end_process()  # JAX would need seconds to release everything


def prompting_of(config: DictConfig) -> Callable[[Messages], Messages]:
    """Returns a function that puts the prompts of a data set around the messages of a chat.

    The system prompt comes first unless the chat has one; each message of the user is a question.
    """
    data = instantiate(config.data)
    template, system = QuestionTemplate.of(data), getattr(data, "system_prompt", None)
    if not template and system is None:
        raise InputError(
            "prompting=true changes nothing: data has no system_prompt, prompt or examples."
        )

    def add_prompting(messages: Messages) -> Messages:
        if system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system}, *messages]
        return template.around(messages, all_of_user=True)

    return add_prompting


def name_of(options: ServeOptions, config: DictConfig) -> str:
    """Returns the name of the model if the options have none."""
    if options.run is not None:
        return Path(options.run).expanduser().resolve().name
    path = config.model.get("path")
    return str(path or config.model._target_.rpartition(".")[2].lower()).rstrip("/")


def warm_up(scheduler: Scheduler, token: int) -> None:
    """Generates the first tokens, so that no client waits for their compilation."""
    ended: Future[None] = Future()

    def deliver(chunks: list[Chunk]) -> None:
        if any(chunk.finish is not None for chunk in chunks):
            ended.set_result(None)

    sampling = Sampling(temperature=0.0)
    sequence = TokenSequence(
        context=[token], key=key_data(0), max_tokens=2, sampling=sampling, end_ids=()
    )
    scheduler.submit([sequence], deliver, ended.set_exception)
    try:
        ended.result(WARM_UP_SECONDS)
    except TimeoutError:
        raise RunError(f"No token was generated within {WARM_UP_SECONDS:.0f} seconds.") from None
