"""Repeats a run of rl4p with TRL, and compares what both learn in the same time.

    python -m experiments.beside_trl train RUN FOLDER
    python -m experiments.beside_trl show outputs/beside_trl

`train` reads the configuration of a run, and trains with TRL's GRPOTrainer: the same weights,
prompts in the same order, groups, reward and hyperparameters, and the same evaluations. It needs
the environment of `make .venv/.parity`. `show` reads the runs of `COMMANDS`, and writes
experiments/beside_trl.md and its picture. Times are those of the steps, compilation included and
evaluations left out.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rl4p.base.types import Episode, Prompt
from rl4p.configuration import instantiate
from rl4p.data.prompts import encode_prompts
from rl4p.loop.source import PromptStream
from rl4p.model.tokenizer import load_tokenizer
from rl4p.protocols.hook import StepInfo
from rl4p.runs.pictures import COLOURS, legend, panels, save
from rl4p.runs.record import Record

HERE = Path(__file__).parent
COMMANDS = """\
    python -m experiments.real_model .cache/smollm2
    experiments/benchmarks/peers/setup.sh outputs/peers # for its library
    for seed in 0 1; do
      python -m rl4p.train experiment=smollm2_sums_cpu seed=$seed \\
        hydra.run.dir=outputs/beside_trl/rl4p/$seed trusted_targets=experiments \\
        +hooks.memory._target_=experiments.beside_trl.PeakMemory
      LD_PRELOAD=outputs/peers/mkl_avx512.so \\
        python -m experiments.beside_trl train outputs/beside_trl/rl4p/$seed \\
        outputs/beside_trl/trl/$seed
    done
    python -m experiments.beside_trl show outputs/beside_trl
"""
TEXT = """\
SmolLM2-135M-Instruct in float32 on two CPU cores. Both trainers have the same weights, prompts in
the same order, groups of 8, rewards and hyperparameters, and each its own random numbers. Minutes
are those of the steps, compilation included and evaluations left out. TRL has microbatches of 32
rows, no gradient checkpointing, and the kernels of AVX-512 on any processor. Its second seed ran on
another day than rl4p's, when the machine may have been a tenth slower, and tests ran beside the
first steps of rl4p's. Made by
"""
ROWS = 32  # of a microbatch of TRL
PASS_AT_1 = "eval/arithmetic/pass_at_1"
PEAK = "memory/peak_gib"
NAMES = {"rl4p": "rl4p", "trl": "TRL"}


def peak_gib() -> float:
    """Returns the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class PeakMemory:
    """A hook that records `peak_gib` in a run of rl4p."""

    every = 1

    def __call__(self, info: StepInfo) -> dict[str, float]:
        return {PEAK: peak_gib()}


class Grader:
    """Grades texts with the reward of a run."""

    def __init__(self, config: DictConfig, prompts: Sequence[Prompt]) -> None:
        self.terms = instantiate(config.reward).terms
        self.by_id = {prompt.id: prompt for prompt in prompts}

    def grades(self, name: str, ids: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Returns the grades of one term."""
        pairs = zip(ids, texts, strict=True)
        episodes = [Episode(prompt=self.by_id[id], response=text) for id, text in pairs]
        return np.asarray(self.terms[name](episodes), float)

    def rewards(self, ids: Sequence[str], texts: Sequence[str]) -> list[float]:
        grades = {name: self.grades(name, ids, texts) for name in self.terms}
        weighted = [self.terms[name].weight * each for name, each in grades.items()]
        return np.sum(weighted, axis=0).tolist()


def train(run: Path, folder: Path) -> None:
    """Repeats a run of rl4p with TRL's GRPOTrainer, and records the metrics of its steps."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    config: Any = OmegaConf.load(run / "config.yaml")
    torch.manual_seed(config.seed)
    tokenizer = load_tokenizer(Path(config.model.path))
    data = instantiate(config.data)

    def prompts_of(questions: Any) -> list[Prompt]:
        return encode_prompts(
            questions,
            tokenizer,
            system_prompt=data.system_prompt,
            max_prompt_tokens=config.max_prompt_tokens,
        )[0]

    prompts, held_out = prompts_of(data.train()), prompts_of(data.held_out())
    taken = PromptStream(prompts, config.seed).take(config.prompts_per_step * config.steps, 1)
    check_order(run, taken, config.prompts_per_step)
    grader = Grader(config, [*prompts, *held_out])
    model = transformers.AutoModelForCausalLM.from_pretrained(config.model.path, dtype="float32")
    record = Record(folder)
    folder.mkdir(parents=True)
    torch.set_num_threads(2)

    @torch.no_grad()
    def pass_at_1() -> float:
        """Returns the share of greedy responses to held-out prompts that are correct."""
        model.eval()
        correct = 0.0
        for first in range(0, len(held_out), ROWS):
            chunk = held_out[first : first + ROWS]
            width = max(len(prompt.tokens) for prompt in chunk)
            rows = [[0] * (width - len(x.tokens)) + list(x.tokens) for x in chunk]
            mask = [[0] * (width - len(x.tokens)) + [1] * len(x.tokens) for x in chunk]
            ids = model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                do_sample=False,
                max_new_tokens=config.max_response_tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
            texts = tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)
            term = config.evaluation.term
            correct += float(grader.grades(term, [x.id for x in chunk], texts).sum())
        model.train()
        return correct / len(held_out)

    class Steps(transformers.TrainerCallback):
        """Records the time and the mean reward of each step, and evaluates."""

        rewards: Sequence[float] = ()
        begun = 0.0

        def reward(self, completions: Any, id: Any, **_: Any) -> list[float]:
            texts = [messages[0]["content"] for messages in completions]
            self.rewards = grader.rewards(id, texts)
            return list(self.rewards)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            record.log(0, {PASS_AT_1: pass_at_1()})

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            seconds = time.perf_counter() - self.begun
            row = {"time/step": seconds, "reward/mean": float(np.mean(self.rewards))}
            step = state.global_step
            if step % config.evaluation.every == 0 or step == config.steps:
                row[PASS_AT_1] = pass_at_1()
            record.log(step, row | {PEAK: peak_gib()})
            print(json.dumps({"step": step} | row), flush=True)

    steps = Steps()
    sequences = config.prompts_per_step * config.group_size
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=steps.reward,
            args=trl.GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,  # on by default; it costs a second forward pass
                per_device_train_batch_size=ROWS,
                gradient_accumulation_steps=sequences // ROWS,
                num_generations=config.group_size,
                max_completion_length=config.max_response_tokens,
                temperature=1.0,
                beta=0.0,
                loss_type="dapo",  # the mean over all tokens, the default of rl4p
                learning_rate=config.optimizer.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=config.optimizer.max_grad_norm,
                max_steps=config.steps,
                shuffle_dataset=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                seed=config.seed,
            ),
            train_dataset=Dataset.from_list(
                [{"id": x.id, "prompt": x.prompt_messages(data.system_prompt)} for x in taken]
            ),
            processing_class=tokenizer,
            callbacks=[steps],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def check_order(run: Path, taken: Sequence[Prompt], each: int) -> None:
    """Checks that the recorded samples of a run have these prompts, `each` of them in a step.

    Raises:
      SystemExit: the prompt of a sample is not one of its step, or the run recorded no samples.
    """
    samples = Record(run).samples()
    for sample in samples:
        last = sample["step"] * each
        if sample["id"] not in {prompt.id for prompt in taken[last - each : last]}:
            sys.exit(f"{run}: step {sample['step']} trained on other prompts.")
    if not samples:
        sys.exit(f"{run} has no samples: train it with samples.every above 0.")


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Returns two lists, for all evaluations: the minutes of training before it, and its pass@1."""
    minutes, accuracies, seconds = [], [], 0.0
    for row in Record(run).metrics():
        seconds += row.get("time/step", 0.0)
        if PASS_AT_1 in row:
            minutes.append(seconds / 60)
            accuracies.append(row[PASS_AT_1])
    return minutes, accuracies


def reached(run: Path, least: float) -> float | None:
    """Returns the minutes of training until an evaluation had this pass@1; None if none had."""
    return next((at for at, value in zip(*curve(run), strict=True) if value >= least), None)


def row_of(run: Path, title: str, least: float) -> str:
    """Returns the row of a run in the table."""
    rows, (minutes, accuracies) = Record(run).metrics(), curve(run)
    seconds = float(np.median([row["time/step"] for row in rows if "time/step" in row]))
    peak = max(row.get(PEAK, 0.0) for row in rows)
    at = reached(run, least)
    cells = (
        *(title, run.name, f"{accuracies[0]:.3f}", f"{accuracies[-1]:.3f}", f"{seconds:.1f}"),
        *(f"{minutes[-1]:.1f}", f"{peak:.1f}", "never" if at is None else f"{at:.1f}"),
    )
    return f"| {' | '.join(cells)} |"


def show(folder: Path) -> None:
    """Writes the table and the picture."""
    runs = {
        name: sorted(path for path in (folder / name).iterdir() if path.is_dir()) for name in NAMES
    }
    least = min(max(curve(run)[1]) for each in runs.values() for run in each)
    lines = [row_of(run, NAMES[name], least) for name, each in runs.items() for run in each]
    heads = (
        *("engine", "seed", "pass@1 before", "after", "seconds of a step", "minutes"),
        *("peak GiB", f"minutes to {least:.3f}"),
    )
    sentences = (
        "A chat model learns sums of two digits, here and in TRL",
        TEXT,
        COMMANDS,
        "![Greedy pass@1 against minutes of training](beside_trl.png)",
        f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n" + "\n".join(lines),
    )
    (HERE / "beside_trl.md").write_text("# " + "\n\n".join(map(str.rstrip, sentences)) + "\n")
    figure, (axes,) = panels(1, size=(7.0, 3.2))
    for index, (name, each) in enumerate(runs.items()):
        for run in each:
            label = NAMES[name] if run == each[0] else None
            look = {"color": COLOURS[index], "marker": "o", "markersize": 4, "label": label}
            axes.plot(*curve(run), **look)
    axes.set_title("greedy pass@1 on held-out sums")
    axes.set_xlabel("minutes of training on two CPU cores")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    legend(axes, loc="lower right")
    save(figure, HERE / "beside_trl.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("run", type=Path)
    training.add_argument("folder", type=Path)
    commands.add_parser("show").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "train":
        train(arguments.run, arguments.folder)
    else:
        show(arguments.folder)


if __name__ == "__main__":
    main()
