"""The servers that all tests share, and engines on them."""

from contextlib import closing

import jax
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.vllm import VLLM
from tests.support.vllm_servers import LORA, PROCESSED, PYTHON, SMOLLM2, TINY, Proxy, Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    if not PYTHON.exists():
        pytest.fail(f"There is no {PYTHON}: `make vllm` installs it, and runs these tests.")
    with closing(Servers(tmp_path_factory.mktemp("vllm"))) as started:
        yield started


@pytest.fixture(scope="session")
def started(servers, request):
    """The addresses of the servers that the selected tests need, which start at the same time."""
    flags = {
        "first": (TINY, *PROCESSED),
        "second": (TINY, *PROCESSED, *LORA),
        "real": (SMOLLM2, "--max-model-len", "256"),
    }
    needed = {name for item in request.session.items for name in item.fixturenames}
    return {name: servers.start(*words) for name, words in flags.items() if name in needed}


@pytest.fixture(scope="session")
def first(servers, started):
    """The address of a server of the tiny policy."""
    return servers.ready(started["first"])


@pytest.fixture(scope="session")
def second(servers, started):
    """The address of a server of the tiny policy that takes adapters too."""
    return servers.ready(started["second"])


@pytest.fixture(scope="session")
def real(servers, started):
    """The address of a server of SmolLM2."""
    return servers.ready(started["real"])


@pytest.fixture(scope="session")
def policy_and_params():
    return Pretrained(path=str(TINY)).build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture
def opened(policy, tmp_path):
    """Opens an engine on servers; `policy` is another than the tiny one."""

    def open_engine(*urls, policy=policy, **options):
        rollout = VLLM(
            servers=urls,
            weights_folder=str(tmp_path),
            **{"max_response_tokens": 16, "health_seconds": 0.5, "patience": 60.0} | options,
        )
        return closing(rollout.open(policy))

    return open_engine


@pytest.fixture
def proxy(first):
    with closing(Proxy(first)) as made:
        yield made
