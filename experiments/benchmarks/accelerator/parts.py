"""The parts of the benchmark, most valuable first: their cases, deadlines and environments."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

MEASUREMENTS = "experiments.benchmarks.accelerator.measurements"
# A case with such an ending runs with these flags of XLA.
VARIANTS = {"cublas": "--xla_gpu_enable_triton_gemm=false"}
ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # shares the device with other processes


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the benchmark.

    A case that ends in `-cublas` is the case without that ending, with matrix products of cuBLAS
    only: XLA then compiles and compares no kernels of its own for them.

    Attributes:
      about: what the part measures, for the page.
      cases: the names of its cases, each of which runs in its own process.
      seconds: the deadline of a case.
      environment: variables that a case sets in addition.
      module: the module whose function `measure` runs a case.
    """

    name: str
    about: str
    cases: tuple[str, ...] = ("all",)
    seconds: float = 240
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = ""

    def chosen(self, words: Collection[str]) -> "Part":
        """Returns the part with the cases that words such as PART or PART-CASE name."""
        cases = [case for case in self.cases if {self.name, self.name_of(case)} & {*words}]
        return replace(self, cases=tuple(cases))

    def name_of(self, case: str) -> str:
        return self.name if case == "all" else f"{self.name}-{case}"


PARTS = {
    part.name: part
    for part in (
        Part(
            name="device",
            about="The device, its measured rates and the versions of the packages.",
            seconds=120,
        ),
        Part(
            name="update",
            about=(
                "A PPO gradient step with AdamW by tokens per microbatch: 128 sequences with the "
                "shape of Qwen2.5-1.5B; 65,536 tokens of long rows with that of Qwen3-0.6B, by "
                "`model.remat=layer`. The share is that of useful FLOPs in the rate of a large "
                "product, or in the vendor's. Every response counts a prompt of its own, although "
                "a group computes its prompt once."
            ),
            cases=("2048", "16384", "0.6B-16384", "0.6B-65536", "16384-cublas"),
            seconds=300,
        ),
        Part(
            name="sampler",
            about=(
                "Decoding with the shape of Qwen2.5-1.5B, random parameters, in bfloat16. The "
                "floor is the time of reading parameters and cache once per token at the measured "
                "copy bandwidth; `share_at_peak` is by the vendor's figure."
            ),
            cases=("64", "256", "256-cublas"),
            seconds=300,
        ),
        Part(
            name="attention",
            about=(
                "`model.attention=cudnn` beside `xla`, forward and backward through four layers "
                "of the shape of Qwen2.5-1.5B; differences are relative to the norm. `update` is "
                "a whole gradient step with shared prompts."
            ),
            cases=("kernels", "update"),
        ),
        Part(
            name="step",
            about=(
                "Whole GRPO steps of a configuration: 256 sequences of 256 + 128 tokens. `widths`: "
                "with `update.microbatch_widths` of the defaults; the others have 1."
            ),
            cases=("0.5B-cublas", "1.5B-cublas", "0.5B", "0.5B-widths-cublas"),
            seconds=420,
        ),
        Part(
            name="default",
            about="`python -m rl4p.train tracker=none`, with fewer steps.",
            seconds=300,
        ),
        Part(
            name="parity",
            about=(
                "Largest differences of logits and gradients to transformers on torch in float32 "
                "on the CPU, for small random models; the logits' largest absolute value is "
                "beside it. `highest` is `jax_default_matmul_precision`."
            ),
            cases=("qwen2", "llama"),
            environment=ON_DEMAND,
        ),
        Part(
            name="peers",
            about=(
                "The scripts of `peers` with `--device=gpu`: rl4p beside transformers with SDPA "
                "and TRL (if it is installed), same weights, prompts and reward."
            ),
            cases=("0.5B-rollout", "0.5B-step-cublas", "1.5B-rollout"),
            seconds=300,
        ),
        Part(
            name="resume",
            about="A run that is killed and resumed, compared with one that was not.",
            cases=("defaults", "deterministic"),
            environment=ON_DEMAND,
        ),
        Part(
            name="memory",
            about="Planned bytes of the programs of `step`, and the device's peak in that part.",
            cases=("0.5B-cublas", "1.5B-cublas"),
        ),
        Part(
            name="asynchronous",
            about="`collector=asynchronous` on one device.",
            environment=ON_DEMAND,
        ),
        Part(
            name="lora",
            about="Steps of a model read from a folder, with LoRA.",
            cases=("tiny", "0.5B-cublas"),
            environment=ON_DEMAND,
        ),
    )
}  # fmt: skip
