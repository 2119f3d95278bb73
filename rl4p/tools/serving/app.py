"""The application of `rl4p.serve`: its endpoints, its health, its counts and its page."""

import asyncio
from pathlib import Path

import rl4p
from rl4p.base.types import Sampling
from rl4p.engine.serving.active_request import CompletionOptions
from rl4p.engine.serving.app import App, Guard, HttpRequest, ServerState
from rl4p.engine.serving.body import HttpError, JsonResponse, TextResponse
from rl4p.engine.serving.chat import chat_completions
from rl4p.engine.serving.completions import completions
from rl4p.tools.browser.beside import render
from rl4p.tools.serving.sglang import SGLangControl, generate
from rl4p.tools.serving.vllm import VLLMControl, tokenize
from rl4p.tools.serving.weight_updates import WeightUpdates

HEALTH_SECONDS = 30.0
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class ServedApp(App):
    """The application of `rl4p.serve`: also SGLang's and vLLM's endpoints, and updates of weights.

    The arguments stand at `App`.
    """

    def __init__(self, server: ServerState, guard: Guard, *, most_bytes: int) -> None:
        self.updates = WeightUpdates(server)
        routes = {
            ("POST", "/v1/completions"): completions,
            ("POST", "/v1/chat/completions"): chat_completions,
            ("POST", "/generate"): generate,
            ("POST", "/tokenize"): tokenize,
            ("GET", "/health"): self.health,
            ("GET", "/health_generate"): self.health_generate,
            ("GET", "/version"): self.version,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/"): self.page,
            **VLLMControl(self.updates).routes(),
            **SGLangControl(self.updates).routes(),
        }
        super().__init__(server, guard, most_bytes=most_bytes, routes=routes)

    async def health(self, request: HttpRequest) -> JsonResponse:
        """Reports whether the server takes requests."""
        status = state(self.updates.server)
        return JsonResponse({"status": status}, 200 if status in ("ready", "paused") else 503)

    async def health_generate(self, request: HttpRequest) -> JsonResponse:
        """Reports whether the server can generate a token, by generating one."""
        if self.updates.scheduler.paused:
            raise HttpError("The server is paused.", status=503)
        options = CompletionOptions(sampling=Sampling(temperature=0.0), max_tokens=1, end_ids=())
        active = self.server.start(options, [[self.server.policy.end_ids[0]]], [[0]], stream=False)
        async with request.watched(active):
            try:
                async with asyncio.timeout(HEALTH_SECONDS):
                    await active.finished()
            except TimeoutError:
                message = f"No token was generated within {HEALTH_SECONDS:.0f} seconds."
                raise HttpError(message, status=503) from None
        return JsonResponse({"status": state(self.updates.server)})

    async def version(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"version": f"rl4p {rl4p.__version__}"})

    async def metrics(self, request: HttpRequest) -> TextResponse:
        """Responds with the counts in the text format of Prometheus."""
        server = self.updates.server
        lines = []
        for name, value in numbers(server).items():
            lines += [f"# TYPE rl4p_{name} untyped", f"rl4p_{name} {value:g}"]
        lines.append("# TYPE rl4p_http_requests_total counter")
        lines += [
            f'rl4p_http_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(server.responses.items())
        ]
        version = server.scheduler.version.replace("\\", "\\\\").replace('"', '\\"')
        version = version.replace("\n", "\\n")
        lines.append("# TYPE rl4p_weights_info gauge")
        lines.append(f'rl4p_weights_info{{version="{version}"}} 1')
        lines.append("# TYPE rl4p_paused gauge")
        lines.append(f"rl4p_paused {int(server.scheduler.paused)}")
        return TextResponse("\n".join(lines) + "\n", PROMETHEUS)

    async def page(self, request: HttpRequest) -> TextResponse:
        """Responds with a page that shows the state and the counts."""
        server = self.updates.server
        text = render(
            Path(__file__).with_name("page.html"),
            name=server.name,
            version=server.scheduler.version,
            source=server.source,
            state=state(server),
            counts=numbers(server),
            address=server.address,
        )
        return TextResponse(text, "text/html; charset=utf-8")


def state(server: ServerState) -> str:
    """Returns the state of the server in a few words."""
    if server.scheduler.broken is not None:
        return f"out of order: {server.scheduler.broken}"
    if server.closing:
        return "shutting down"
    return "paused" if server.scheduler.paused else "ready"


def numbers(server: ServerState) -> dict[str, float]:
    """Returns the counts of the scheduler and of the connections."""
    connections = {"open_completions": server.open, "clients_gone": server.disconnects}
    return {**server.scheduler.counts(), **connections}
