"""What every test runs under: offline, on the CPU, strict promotion, fixed seeds."""

import ctypes
import dataclasses
import gc
import json
import logging
import os
import random
import resource
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]

# Before JAX is imported; processes that tests start inherit all of it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# In the user's folder, so that a fresh clone finds what an earlier one compiled. The key of an
# entry is a hash of the program and of the compiler's options, so checkouts can share the folder.
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHES / "rl4p" / "tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Compiling is what tests wait for: level 0 is that of LLVM (what XLA fuses and reorders stays), and
# the emitters of fusions that XLA had before take a third of the time. A program in one part is
# compiled in two thirds of the time of 32, which are for processors of more cores.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib") < "0.11":  # later ones have no others, and end at a flag they do not know
    QUICK_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MPLBACKEND"] = "Agg"
# Containers often forbid bytecode. Without it pytest rewrites the assertions of every file in each
# process, and every process that a test starts compiles the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["XDG_STATE_HOME"] = str(CACHES / "rl4p" / "state")  # the key that signs runs of tests
os.environ.pop("RL4P_ALLOW", None)
# A process started in another folder runs this tree too, and not one that is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

import absl.logging  # noqa: E402
import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

from rl4p.base.types import (  # noqa: E402
    Episode,
    Finish,
    Prompt,
    Rewards,
    Sampling,
    TrainingBatch,
    TrainState,
    Trajectories,
)
from rl4p.distributed import counting  # noqa: E402
from rl4p.distributed.mesh import Mesh  # noqa: E402
from rl4p.protocols.engine import Completion, finish  # noqa: E402

# Hydra sets logging up anew, which closes the handlers that are there, and that of absl (Orbax
# brings it) closes its stream: it would be the one that pytest captures.
absl.logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# Tracing makes many small objects that stay: to look through all of them for cycles after every few
# hundred, as Python does, takes a tenth of the time of the tests.
gc.set_threshold(100_000, 20, 100)

# The same examples in every run; a first example may compile, which no deadline should count.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("tests")


# Files with few but long tests: they start first, so that no process waits for them at the end.
LONG = [
    ROOT / "tests" / name
    for name in (
        *("test_recipes.py", "runs/test_train.py", "runs/test_policy.py"),
        *("runs/test_checkpoint.py", "tools/generation/test_job.py"),
        *("runs/test_conversations.py", "runs/test_build.py", "reward/test_code.py"),
        *("command/test_command_line.py", "configuration/test_conf.py"),
        *("reward/test_workers.py", "engine/remote/test_pool.py"),
    )
]


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
    cases = Counter()
    for item in items:
        if mark := item.get_closest_marker("quick"):
            name = item.nodeid.partition("[")[0]
            case = cases[name] if isinstance(mark.args[0], int) else item.callspec.id
            cases[name] += 1
            if not (case < mark.args[0] if isinstance(case, int) else case in mark.args):
                item.add_marker("slow")
    items.sort(key=lambda item: item.path not in LONG)


@pytest.fixture(scope="session")
def on_devices():
    """The environment of a process that sees so many devices."""

    def environment(count):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
        return os.environ | {"XLA_FLAGS": flags}

    return environment


@pytest.fixture
def url(tmp_path, monkeypatch):
    """An address in an empty object store in memory; copies are in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield f"memory://bucket/{tmp_path.name}"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def seeds():
    """The same draws in every run, for code that uses a global generator (a library's)."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture(autouse=True)
def logging_is_on():
    """Whatever an earlier test had Hydra set: a library may switch the loggers of others off."""
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("rl4p"):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
    before = list(logging.root.handlers)
    yield
    # Hydra only removes the log file of the job before: unclosed, it would fail a later test.
    for handler in set(logging.root.handlers) - set(before):
        logging.root.removeHandler(handler)
        handler.close()


@pytest.fixture
def counts(monkeypatch):
    """Returns the counts of all calls of phases in a test; a call that has ended keeps its own."""
    made, begin = [], counting.Count.__init__

    def remembered(count, *arguments):
        begin(count, *arguments)
        made.append(count)

    monkeypatch.setattr(counting.Count, "__init__", remembered)
    yield made
    assert counting.COUNTS == []


@pytest.fixture(scope="session")
def memory_limit():
    """The memory of this process above which compiled programs are dropped, in a list of one."""
    return [2**31]


@pytest.fixture(autouse=True, scope="module")
def bounded_memory(memory_limit):
    """Gives memory back after a file: a compiled program takes about a megabyte on a CPU.

    Later files trace their programs and read them from the persistent cache again. What stays are
    modules and fixtures: to drop programs again after each file would only cost time.
    """
    yield
    if resident_bytes() > memory_limit[0]:
        drop_programs()
        memory_limit[0] = max(2**31, resident_bytes() + 2**29)


@pytest.fixture(scope="session")
def memory_limit_of_a_file():
    """The memory of this process above which it is given back before a test, in a list of one."""
    return [3 * 2**30]


@pytest.fixture(autouse=True)
def bounded_memory_of_a_file(memory_limit_of_a_file):
    """Gives memory back before a test too: a few long files compile programs of gigabytes."""
    if resident_bytes() > memory_limit_of_a_file[0]:
        drop_programs()
        memory_limit_of_a_file[0] = max(3 * 2**30, resident_bytes() + 2**28)


def drop_programs():
    """Drops the compiled programs of this process, and gives their memory back."""
    jax.clear_caches()
    gc.collect()
    malloc_trim()


def resident_bytes():
    """The memory of this process, where /proc tells; elsewhere 0."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def malloc_trim():
    """Has glibc return free memory to the system, which it does not do by itself."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def strict_promotion(request):
    """Arrays of different types or ranks never meet by accident, except where a test is marked."""
    mixed = request.node.get_closest_marker("mixed_dtypes") is not None
    with (
        jax.numpy_dtype_promotion("standard" if mixed else "strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


# A policy and batches small enough to compile in a second; the same shapes everywhere, so that what
# one test compiled serves the next. B = 8 sequences, T = 16 tokens unless a test says otherwise.

RESPONSE_LENGTHS = (8, 3, 0, 5, 1, 8, 2, 6)
PROMPT_LENGTHS = (8, 5, 3, 8, 1, 7, 4, 6)


@pytest.fixture(scope="session")
def policy_and_params():
    """Two layers, two query heads to each of two key heads, and no parameter at 0 or 1."""
    from rl4p.model.scratch import Scratch

    model = Scratch(
        width=32, layers=2, heads=4, num_kv_heads=2, feed_forward_width=48, max_positions=128
    )
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: np.float32(x + noise.normal(0, 0.1, x.shape)), jax.device_get(params)
    )
    return policy, policy.mesh.replicate(params)


@pytest.fixture(scope="session")
def policy(policy_and_params):
    return policy_and_params[0]


@pytest.fixture(scope="session")
def params(policy_and_params):
    """Never to be given to an update as they are: it takes its arrays (`make_state` copies)."""
    return policy_and_params[1]


@pytest.fixture(scope="module")
def sample(ending, params, prompts):
    """Calls a sampler; `ending` is a module's own policy, by which many a token ends a response."""

    def sample(sampler, *, prompts=prompts, group_size=2, seed=0, greedy=False, params=params):
        return sampler(
            ending,
            params,
            prompts,
            group_size=group_size,
            key=jax.random.key(seed),
            version=3,
            greedy=greedy,
        )

    return sample


@pytest.fixture(scope="session")
def prompts(policy):
    """Sums of several lengths, in the chat template."""
    from rl4p.data.prompts import encode_prompts
    from rl4p.data.synthetic import addition

    pairs = ((1, 2), (12, 34), (5, 5), (123, 456))
    questions = [addition(a, b, (False,) * len(str(a))) for a, b in pairs]
    encoded, _ = encode_prompts(
        questions, policy.tokenizer, system_prompt=None, max_prompt_tokens=16
    )
    return encoded


@pytest.fixture(scope="session")
def make_prompt():
    def make(tokens=(0,), **fields):
        return Prompt(
            **{"id": "a", "question": "q", "answer": "1", "task": "t"} | fields, tokens=tokens
        )

    return make


@pytest.fixture(scope="session")
def make_trajectories():
    """Random tokens in left-padded prompts and right-padded responses; padding is not zeros."""

    def make(
        response_lengths=RESPONSE_LENGTHS,
        prompt_lengths=PROMPT_LENGTHS,
        *,
        group_ids=None,
        left=0,
        right=0,
        width=8,
        limit=8,
        seed=0,
    ):
        """`left` and `right` add columns of padding and change nothing else."""
        B = len(response_lengths)
        random = np.random.default_rng(seed)
        tokens = random.integers(0, 256, (B, width + limit), np.int32)
        logprobs = random.uniform(-8, -4, (B, width + limit)).astype(np.float32)
        column = np.arange(width + limit)
        prompt_lengths = np.resize(prompt_lengths, B)[:, None]
        ends = width + np.asarray(response_lengths)[:, None]
        mask = (column >= width) & (column < ends)
        segments = ((column >= width - prompt_lengths) & (column < ends)).astype(np.int32)

        def pad(x, fill=0):
            return jnp.asarray(np.pad(x, ((0, 0), (left, right)), constant_values=fill))

        return Trajectories(
            tokens_BT=pad(tokens, 7),
            response_mask_BT=pad(mask),
            positions_BT=pad(np.maximum(np.cumsum(segments, axis=1, dtype=np.int32) - 1, 0)),
            segment_ids_BT=pad(segments),
            behaviour_logprobs_BT=pad(np.where(mask, logprobs, np.float32(0))),
            policy_version_BT=pad(np.where(mask, np.int32(0), np.int32(-1)), -1),
            group_ids_B=jnp.asarray(
                np.arange(B) // 4 if group_ids is None else group_ids, jnp.int32
            ),
            finish_B=jnp.full(B, Finish.STOP, jnp.int8),
        )

    return make


@pytest.fixture(scope="session")
def make_episodes(make_prompt):
    """Returns a function that makes episodes from responses, with one prompt or one for each."""

    def make(responses, prompts=None):
        prompts = [make_prompt()] * len(responses) if prompts is None else prompts
        pairs = zip(prompts, responses, strict=True)
        return tuple(Episode(prompt=prompt, response=response) for prompt, response in pairs)

    return make


@pytest.fixture(scope="session")
def make_completions():
    """Completions from rows of numbers, cut to their lengths."""

    def make(tokens_BR, lengths_B, logprob=-2.0, *, version=0, end_ids=()):
        rows = [np.int32(row)[:n] for row, n in zip(tokens_BR, lengths_B, strict=True)]
        return [
            Completion(
                tokens=row,
                logprobs=np.full(len(row), logprob, np.float32),
                versions=np.full(len(row), version, np.int32),
                finish=finish(row, end_ids),
            )
            for row in rows
        ]

    return make


@pytest.fixture(scope="session")
def make_rewards():
    def make(total, valid=None):
        total = jnp.asarray(total, jnp.float32)
        valid = np.ones(total.shape, bool) if valid is None else np.asarray(valid, bool)
        return Rewards(total_B=total, terms={"correct": total}, valid_B=jnp.asarray(valid))

    return make


@pytest.fixture(scope="session")
def make_state():
    """On the mesh, as in a run: elsewhere a second step would compile everything once more."""

    def make(params, optimizer, *, step=0, memory=None):
        params = jax.tree.map(jnp.copy, params)
        state = TrainState(
            step=jnp.int32(step),
            params=params,
            optimizer_state=optimizer.transform().init(params),
            key=jax.random.key(1),
            memory=memory or {},
        )
        return Mesh(dp=1).replicate(state)

    return make


@pytest.fixture(scope="session")
def make_phases():
    """Phases with nothing beside the update's own loss, unless a test says otherwise."""
    from rl4p.learner.correction import NONE as NO_CORRECTION
    from rl4p.learner.critic import NONE as NO_CRITIC
    from rl4p.learner.entropy import NONE as NO_ENTROPY
    from rl4p.learner.kl import NONE as NO_KL
    from rl4p.loop.phases import Phases

    def make(**phases):
        nothing = {
            **dict.fromkeys(("rollout", "reward", "advantage", "update")),
            "correction": NO_CORRECTION(),
            "kl": NO_KL(),
            "entropy": NO_ENTROPY(),
            "critic": NO_CRITIC(),
        }
        return Phases(**nothing | phases)

    return make


@pytest.fixture(scope="session")
def make_objective(make_phases, policy):
    """An update's loss and what joins it, with rows that stay together if it couples them."""

    def make(update, *, group_size=1, sampling=Sampling(), decoder=None, **phases):  # noqa: B008
        rollout = SimpleNamespace(sampling=sampling)
        objective = make_phases(update=update, rollout=rollout, **phases).objective(
            policy, group_size
        )
        return objective if decoder is None else dataclasses.replace(objective, decoder=decoder)

    return make


@pytest.fixture(scope="session")
def score_all():
    """Log-probabilities and entropies of all tokens, in one microbatch, differentiable."""
    from rl4p.learner.logprobs import token_scores, trunk

    def score(decoder, params, trajectories, sampling):
        hidden_BTD = trunk(decoder, params, trajectories)
        return token_scores(decoder, params, hidden_BTD, trajectories, sampling)

    return jax.jit(score, static_argnums=(0, 3))


@pytest.fixture(scope="session")
def numpy_logits():
    """A Qwen2 decoder in plain NumPy, float64, one unpadded sequence: an oracle for ours."""

    def norm(x, scale, config):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_epsilon) * scale

    def rotated(x_Th, config):
        half = config.head_width // 2
        frequency = config.rope_theta ** (-np.arange(half) / half)
        z = (x_Th[:, :half] + 1j * x_Th[:, half:]) * np.exp(
            1j * np.arange(len(x_Th))[:, None] * frequency
        )
        return np.concatenate([z.real, z.imag], axis=1)

    def logits(config, params, tokens_T):
        params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        x, h = params["embedding"][np.asarray(tokens_T)], config.head_width
        future = np.triu(np.ones((len(x), len(x)), bool), 1)
        for i in range(config.layers):
            layer = jax.tree.map(lambda x_L, i=i: x_L[i], params["layers"])
            y = norm(x, layer["attention_norm"]["scale"], config)
            q, k, v = (
                y @ layer[name]["kernel"] + layer[name]["bias"]
                for name in ("query", "key", "value")
            )
            heads = []
            for head in range(config.heads):
                own = slice(head * h, (head + 1) * h)
                shared = head * config.num_kv_heads // config.heads
                shared = slice(shared * h, (shared + 1) * h)
                scores = rotated(q[:, own], config) @ rotated(k[:, shared], config).T / np.sqrt(h)
                weights = np.exp(np.where(future, -np.inf, scores))
                heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, shared])
            x = x + np.concatenate(heads, axis=1) @ layer["output"]["kernel"]
            y = norm(x, layer["feed_forward_norm"]["scale"], config)
            gate, up = y @ layer["gate"]["kernel"], y @ layer["up"]["kernel"]
            x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["down"]["kernel"]
        head_VD = params["embedding" if config.tied_embedding else "head"]
        return norm(x, params["norm"]["scale"], config) @ head_VD.T

    return logits


@pytest.fixture(scope="session")
def make_batch():
    def make(advantages, proximal, *, mask=None, behaviour=None, groups=None, version=0, **scores):
        """Rows of numbers; without a mask every token counts."""

        def array(x, dtype=jnp.float32):
            return jnp.asarray(np.broadcast_to(x, np.shape(advantages)), dtype)

        B = len(advantages)
        mask = array(True if mask is None else mask, bool)
        trajectories = Trajectories(
            tokens_BT=array(0, jnp.int32),
            response_mask_BT=mask,
            positions_BT=array(0, jnp.int32),
            segment_ids_BT=array(1, jnp.int32),
            behaviour_logprobs_BT=array(proximal if behaviour is None else behaviour),
            policy_version_BT=jnp.where(mask, jnp.int32(version), -1),
            group_ids_B=jnp.asarray(np.zeros(B) if groups is None else groups, jnp.int32),
            finish_B=jnp.zeros(B, jnp.int8),
        )
        scores = {"proximal_logprobs": proximal} | scores
        return TrainingBatch(
            trajectories=trajectories,
            advantages_BT=array(advantages),
            loss_mask_BT=mask,
            scores={name: array(x) for name, x in scores.items()},
        )

    return make


@pytest.fixture(scope="session")
def per_sample():
    """The one value of each sample's response tokens, when it is right on all of them."""

    def per_sample(trajectories, advantages):
        advantages, mask = np.asarray(advantages), np.asarray(trajectories.response_mask_BT)
        values = np.where(mask, advantages, -np.inf).max(axis=1)
        values = np.where(mask.any(axis=1), values, 0)
        np.testing.assert_array_equal(advantages, np.where(mask, values[:, None], 0))
        assert advantages.dtype == np.float32
        return values

    return per_sample


@pytest.fixture
def serve():
    """Returns a function that starts an HTTP server, and returns the requests that it receives.

    Its argument is called with the body and the number of a request. It returns a JSON value,
    bytes, or a tuple of status, headers and one of these. A `ConnectionError` ends the connection
    without an answer.
    """
    servers, lock = [], threading.Lock()

    def start(answer):
        asked = SimpleNamespace(url="", bodies=[], headers=[], paths=[], together=0, open=0)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    asked.bodies.append(body)
                    asked.headers.append(dict(self.headers))
                    asked.paths.append(self.path)
                    number = len(asked.bodies)
                    asked.open += 1
                    asked.together = max(asked.together, asked.open)
                try:
                    found = answer(body, number)
                except ConnectionError:
                    self.close_connection = True
                    return
                finally:
                    with lock:
                        asked.open -= 1
                status, headers, found = found if isinstance(found, tuple) else (200, {}, found)
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        asked.url = f"http://127.0.0.1:{server.server_address[1]}"
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
