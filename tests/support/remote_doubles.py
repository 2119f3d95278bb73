"""Doubles of vLLM and SGLang, made from their documentation, whose faults can be switched on.

They decode with the sampler of this process, so that their tokens and log-probabilities are right,
and load weights from the folders that they are given.
"""

import json
import socket
import struct
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Microbatching, Sampling, Trajectories
from rl4p.engine.in_process import PublishedWeights, RowOptions
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.protocols.engine import Request
from rl4p.rollout.naive_sampler import NaiveEngine
from rl4p.tools.serving.weights import checksums, replacement

ANSWERS = {"/v1/completions", "/generate"}  # the paths that answer with tokens
UPDATES = {"/update_weights", "/update_weights_from_disk", "/collective_rpc"}
BEFORE_ANSWERS = ("500", "reset", "hang")
OF_ANSWERS = (
    *("malformed", "truncated", "slow", "two_choices", "no_choices", "nan", "positive"),
    *("no_tokens", "more_tokens", "bad_token", "wrong_reason", "wrong_version", "short"),
    *("other_prompt", "aborts", "aborts_at_once"),
)


class Double:
    """A server of one protocol.

    Attributes:
      fault: called with each path that is asked for; returns the name of a fault, or None.
      params: the weights in sampling form, and `label` what it says about them.
      asked: the paths that were asked for, in order.
      holding: completions wait until it is cleared, or until they are aborted.
    """

    def __init__(self, policy, params, *, port=0):
        self.policy, self.params, self.label = policy, policy.for_sampling(params), "default"
        self.sums = checksums(policy, self.params, "sha256")
        self.context = policy.decoder.config.max_positions
        self.has_crc32 = False  # whether it offers CRC-32, as rl4p.serve
        self.fault = lambda path: None
        self.missing = set()  # paths that are not offered
        self.asked, self.bodies, self.paused, self.asleep = [], [], False, False
        self.holding, self.aborted = threading.Event(), set()
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.port = port
        self.start()

    def start(self):
        """Listens, at the same port as before."""
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                try:
                    double.handle(self, urlsplit(self.path), body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_):
                pass

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_):
                pass  # the client went away

        self.alive = True
        self.http = Threads(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def kill(self):
        """Ends at once: nothing listens, and open connections are cut."""
        self.alive = False
        self.released.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
        self.released.clear()

    def handle(self, handler, url, body):
        path = url.path
        with self.lock:
            self.asked.append(path)
            self.bodies.append((path, body))
        fault = self.fault(path)
        if path in self.missing:
            return send(handler, 404, {"detail": "Not Found"})
        if not self.alive or fault == "reset":
            return reset(handler)
        if fault == "500":
            return send(handler, 500, {"error": "internal"})
        if fault == "hang":
            self.released.wait(30)
            return reset(handler)
        try:
            answer = self.tokenize if path == "/tokenize" else self.answer
            status, answer = answer(path, url.query, body, fault)
        except InputError as error:
            status, answer = 400, {"error": str(error)}
        if not self.alive:
            return reset(handler)
        content = json.dumps(answer).encode()
        if fault == "malformed":
            content = content[:-1] + b"]"
        if fault == "truncated":
            return send_part(handler, content, len(content) // 2)
        if fault == "slow":
            return self.send_slowly(handler, content)
        return send(handler, status, content)

    def listed(self):
        return {"id": "the-model", "max_model_len": self.context}

    def tokenize(self, path, query, body, fault):
        special = body.get("add_special_tokens", True)
        tokens = self.policy.tokenizer(body["prompt"], add_special_tokens=special)["input_ids"]
        return 200, {"tokens": tokens, "count": len(tokens), "max_model_len": self.context}

    def send_slowly(self, handler, content):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        for i in range(len(content)):
            handler.wfile.write(content[i : i + 1])
            handler.wfile.flush()
            if self.released.wait(0.2):
                return reset(handler)
        return None

    def sleep(self):
        """Drops the weights: all its numbers are nan until others are loaded."""
        assert not self.asleep
        self.asleep = True
        with self.lock:
            self.params = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), self.params)
        return 200, {}

    def wake(self):
        self.asleep = False
        return 200, {}

    def load(self, path, label, fault):
        """Replaces the weights; a stale server only says so."""
        assert not self.asleep
        with self.lock:
            if fault != "stale":
                self.params, self.sums = loaded(path, self.policy, self.params)
            if fault != "old_label":
                self.label = label

    def decode(self, tokens, seed, limit, temperature, id=None):
        """Returns the tokens of a completion, their log-probabilities and why it ended."""
        kept = limit
        while self.holding.is_set():
            if self.paused or id in self.aborted:
                kept = min(limit - 1, 2)
                break
            time.sleep(0.005)
        words = np.uint32([[(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]])
        request = Request(tokens=tokens, keys_N=words, max_tokens=limit)
        plain = lambda task: RowOptions(sampling=Sampling())  # noqa: E731
        annealed = None if temperature in (0, 1) else temperature
        engine = NaiveEngine(self.policy, plain, lambda _: annealed)
        with self.lock:
            engine.weights = PublishedWeights(self.params, 0, {})
            (completion,) = engine.complete([request], greedy=temperature == 0)
        tokens, logprobs = completion.tokens.tolist(), completion.logprobs.tolist()
        if kept < len(tokens):
            return tokens[:kept], logprobs[:kept], "abort"
        return tokens, logprobs, "stop" if tokens[-1] in self.policy.end_ids else "length"

    def completion(self, fault, tokens, seed, limit, temperature, id=None):
        """Returns what `decode` does, with the fault of an answer."""
        said, logprobs, reason = self.decode(tokens, seed, limit, temperature, id)
        if fault == "nan":
            logprobs[-1] = float("nan")
        if fault == "positive":
            logprobs[-1] = 0.5
        if fault == "no_tokens":
            said, logprobs = [], []
        if fault == "more_tokens":
            said, logprobs = said + said, logprobs + logprobs
        if fault == "bad_token":
            said[0] = self.policy.decoder.config.vocabulary
        if fault == "short":
            logprobs = logprobs[:-1]
        if fault in ("aborts", "aborts_at_once"):  # by itself
            kept = fault == "aborts"
            said, logprobs, reason = said[:kept], logprobs[:kept], "abort"
        if fault == "wrong_reason":
            reason = "length" if reason == "stop" else "stop"
        return said, logprobs, reason, "another" if fault == "wrong_version" else self.label

    def score(self, tokens):
        """Returns None and log p(token t | tokens before t) of the others."""
        return [None, *scores(self.policy, self.sampled_logits, tokens)]

    def sampled_logits(self, tokens_1T):
        decoder, T = self.policy.decoder, tokens_1T.shape[1]
        positions_1T = np.arange(T, dtype=np.int32)[None]
        cache = decoder.empty_cache(1, T)
        with self.lock:
            hidden = prefill(
                decoder, self.params, tokens_1T, positions_1T, np.ones((1, T), np.int32), cache
            )
        return np.asarray(hidden)

    def close(self):
        self.released.set()
        self.holding.clear()
        if self.alive:
            self.kill()


@partial(jax.jit, static_argnames="decoder")
def prefill(decoder, params, tokens_1T, positions_1T, segments_1T, cache):
    hidden_1TD, _ = decoder.extend(params, tokens_1T, positions_1T, segments_1T, cache, 0)
    return jax.nn.log_softmax(decoder.logits(params, hidden_1TD)[0], axis=-1)


def scores(policy, logprobs_of, tokens):
    logprobs_TV = logprobs_of(np.int32([tokens]))
    return [float(logprobs_TV[t, token]) for t, token in enumerate(tokens[1:])]


LOADED = {}  # the newest folder, which several doubles read, with its parameters and checksums
LOADING = threading.Lock()


def loaded(path, policy, params):
    with LOADING:
        if path not in LOADED:
            LOADED.clear()
            found = replacement(Path(path), policy)(jax.tree.map(jnp.copy, params))
            LOADED[path] = found, checksums(policy, found, "sha256")
        return LOADED[path]


class VLLMDouble(Double):
    def answer(self, path, query, body, fault):
        if path in ("/health", "/server_info"):
            return 200, {}
        if path == "/sleep":
            assert query == "level=2"
            return self.sleep()
        if path == "/wake_up":
            return self.wake()
        if path == "/is_sleeping":
            return 200, {"is_sleeping": self.asleep}
        if path == "/v1/models":
            return 200, {"data": [self.listed()]}
        if path == "/v1/completions":
            return self.complete(body, fault)
        if path == "/pause":
            self.paused = True
            return 200, {"status": "paused"}
        if path == "/resume":
            self.paused = False
            return 200, {"status": "resumed"}
        if path == "/update_weights":
            self.load(body["update_info"]["path"], self.label, fault)
            return 200, {"message": "Weights updated"}
        if path == "/finish_weight_update":
            if fault != "old_label" and "weight_version" in body:
                self.label = body["weight_version"]
            return 200, {"message": "Weight update finished"}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.load(body["kwargs"]["weights_path"], self.label, fault)
            return 200, {"results": [None]}
        if path == "/update_weight_version":
            self.label = body["new_version"]
            return 200, {"success": True, "new_version": self.label}
        if path == "/weight_info":
            return 200, {"weight_version": self.label}
        if path == "/weight_checker":
            if self.has_crc32 and body["algorithm"] == "crc32":
                return 200, {"checksums": checksums(self.policy, self.params), "algorithm": "crc32"}
            return 200, {"checksums": self.sums}
        if path == "/reset_prefix_cache":
            return 200, {"success": fault != "no_success"}
        if path in ("/init_weight_transfer_engine", "/start_weight_update"):
            return 200, {"message": ""}
        return 404, {"detail": "Not Found"}

    def complete(self, body, fault):
        if self.paused and not self.holding.is_set():
            return 503, {"error": "paused"}
        assert body["model"] == "the-model"
        said, logprobs, reason, label = self.completion(
            fault, body["prompt"], body["seed"], body["max_tokens"], body["temperature"]
        )
        choice = {
            "index": 0,
            "text": "",
            "token_ids": said,
            "prompt_token_ids": body["prompt"][fault == "other_prompt" :],
            "logprobs": {"token_logprobs": logprobs} if said else None,
            "finish_reason": reason,
        }
        if body.get("return_weight_versions"):
            spans = [{"version": label, "start": 0, "end": len(said)}] if said else []
            choice["weight_versions"] = spans
        if body.get("top_k") == 1 and body["temperature"] == 1 and not getattr(self, "raw", False):
            choice["logprobs"]["token_logprobs"] = [0.0] * len(said)
        if "prompt_logprobs" in body:
            tokens, found = body["prompt"], self.score(body["prompt"])
            choice["prompt_logprobs"] = [
                None if x is None else {str(token): {"logprob": x, "rank": 1}}
                for token, x in zip(tokens, found, strict=True)
            ]
        choices = {"two_choices": [choice, choice], "no_choices": []}.get(fault, [choice])
        return 200, {"id": "1", "object": "text_completion", "choices": choices}


class SGLangDouble(Double):
    def answer(self, path, query, body, fault):
        if path == "/health":
            return 200, ""
        if path == "/v1/models":
            return 200, {"data": [self.listed()]}
        if path == "/generate":
            return self.generate(body, fault)
        if path == "/pause_generation":
            self.paused = True
            return 200, {"status": "ok"}
        if path == "/continue_generation":
            self.paused = False
            return 200, {"status": "ok"}
        if path == "/abort_request":
            self.aborted.add(body["rid"])
            return 200, {}
        if path == "/update_weights_from_disk":
            if fault == "no_success":
                return 400, {"success": False, "message": "no such file", "num_paused_requests": 0}
            if fault == "late_no_success":
                return 200, {"success": False, "message": "no such file", "num_paused_requests": 0}
            self.load(body["model_path"], body["weight_version"], fault)
            return 200, {"success": True, "message": "", "num_paused_requests": 0}
        if path == "/release_memory_occupation":
            return self.sleep()
        if path == "/resume_memory_occupation":
            assert self.asleep
            return self.wake()
        if path == "/flush_cache":
            return (400, {"error": "busy"}) if fault == "busy" else (200, "Cache flushed.")
        if path in ("/model_info", "/get_weight_version"):
            return 200, {"model_path": "", "weight_version": self.label}
        if path == "/weights_checker" and "algorithm" in body:
            return 422, {"detail": "Extra inputs are not permitted"}
        if path == "/weights_checker":
            return 200, {"success": True, "ranks": [], "checksums": self.sums}
        return 404, {"detail": "Not Found"}

    def generate(self, body, fault):
        params, tokens = body["sampling_params"], body["input_ids"]
        said, logprobs, reason, label = self.completion(
            fault,
            tokens,
            params.get("sampling_seed", 0),
            params["max_new_tokens"],
            params["temperature"],
            body.get("rid"),
        )
        change = fault == "other_tokens"
        triples = [[x, token ^ change, None] for token, x in zip(said, logprobs, strict=False)]
        meta = {
            "id": body.get("rid"),
            "finish_reason": {"type": reason},
            "prompt_tokens": len(tokens) - (fault == "other_prompt"),
            "completion_tokens": len(said),
            "weight_version": label,
            "output_token_logprobs": triples,
        }
        if body.get("logprob_start_len") == 0:
            found = self.score(tokens)
            meta["input_token_logprobs"] = [
                [x, token, None] for x, token in zip(found, tokens, strict=True)
            ]
        answer = {"text": "", "output_ids": said, "meta_info": meta}
        return 200, {"two_choices": [answer, answer], "no_choices": []}.get(fault, answer)


def send(handler, status, content):
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def send_part(handler, content, length):
    """Sends fewer bytes than announced, and closes the connection."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[:length])
    handler.wfile.flush()
    handler.close_connection = True


def reset(handler):
    """Ends the connection with a reset."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    handler.connection.close()
    # What reads and writes the connection afterwards must not fail.
    handler.wfile = handler.rfile = open("/dev/null", "r+b")  # noqa: SIM115, PTH123


def rescored(policy, params, completions, prompts, sampling=None):
    """Returns the largest difference of a log-probability from the trainer's."""
    worst = 0.0
    for prompt, completion in zip(prompts, completions, strict=True):
        n, m = len(prompt), len(completion.tokens)
        width = 64
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : n + m] = [*prompt, *completion.tokens.tolist()]
        inside = np.arange(width) < n + m
        mask = (inside & (np.arange(width) >= n))[None]
        trajectories = Trajectories(
            tokens_BT=tokens,
            response_mask_BT=mask,
            positions_BT=np.minimum(np.arange(width, dtype=np.int32), n + m)[None],
            segment_ids_BT=inside.astype(np.int32)[None],
            behaviour_logprobs_BT=np.zeros((1, width), np.float32),
            policy_version_BT=np.zeros((1, width), np.int32),
            group_ids_B=np.zeros(1, np.int32),
            finish_B=np.full(1, Finish.LENGTH, np.int8),
        )
        options = ScoreOptions(
            decoder=policy.decoder,
            sampling=sampling or Sampling(),
            microbatching=Microbatching(tokens=width, widths=1),
            mesh=policy.mesh,
        )
        rows = policy.mesh.shard_rows(trajectories)
        scores = score_tokens(options, policy.merged(params), rows)
        logprobs = np.asarray(jax.device_get(scores["logprobs"]))[mask]
        worst = max(worst, float(np.abs(logprobs - completion.logprobs).max()))
    return worst
