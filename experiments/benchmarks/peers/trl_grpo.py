"""Full GRPO steps with TRL's GRPOTrainer: generate, reward, advantages, one AdamW update."""

from workload import (
    ON_GPU,
    THREADS,
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_prompts,
    load_tokenizer,
    reward,
)

limit_threads()
import tempfile
import time

import torch
import transformers
import trl
from datasets import Dataset

from hf_generate import check_logprob, load, peak_gib

if not ON_GPU:
    torch.set_num_threads(THREADS)


class Clock(transformers.TrainerCallback):
    """A timer of steps, on_step_begin to on_step_end, and of rollouts, which end at the reward."""

    def __init__(self, record):
        self.record = record

    def on_step_begin(self, *args, **kwargs):
        self.begin = time.perf_counter()

    def reward(self, completions, completion_ids, **kwargs):
        self.rollout_end = time.perf_counter()
        self.lengths = [len(ids) for ids in completion_ids]
        return [reward(text) for text in completions]

    def on_step_end(self, args, state, control, **kwargs):
        step = time.perf_counter() - self.begin
        self.record(state.global_step, self.lengths, self.rollout_end - self.begin, step)


def main():
    a = arguments(5, micro_batch=32, learning_rate=1e-7)
    w, prompts = WORKLOADS[a.workload], load_prompts(a.checkpoint)
    model = load(a.checkpoint, getattr(torch, a.dtype))
    logprob = check_logprob(model, prompts)
    if a.settings == "best":
        size = a.micro_batch
        chosen = {
            "bf16": ON_GPU or a.dtype == "bfloat16",  # activations; parameters have --dtype
            "gradient_checkpointing": False,  # on by default; it costs a second forward
            "per_device_train_batch_size": size,
        }
    else:
        chosen, size = {}, trl.GRPOConfig.per_device_train_batch_size
    rec = Recorder("trl", trl.__version__, w, prompts, dtype=a.dtype, micro_batch=size)

    def record(step, lengths, rollout_s, step_s):
        if step > a.warmup:
            rec.add(sum(lengths), rollout_s, step_s, max(lengths))

    clock = Clock(record)
    total = a.warmup + a.steps
    with tempfile.TemporaryDirectory() as scratch:
        config = trl.GRPOConfig(
            output_dir=scratch,
            use_cpu=not ON_GPU,
            **chosen,
            gradient_accumulation_steps=w.sequences // size,
            num_generations=w.group,
            max_completion_length=w.max_new,
            generation_kwargs={"min_new_tokens": w.max_new} if w.fixed_length else None,
            temperature=1.0,
            beta=0.0,
            num_iterations=1,
            loss_type="grpo",
            learning_rate=a.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,  # Tunix does not clip either
            max_steps=total,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=clock.reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts.texts * total}),
            processing_class=load_tokenizer(a.checkpoint),
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    rec.summary(check_logprob=round(logprob, 6), **peak_gib())


if __name__ == "__main__":
    main()
