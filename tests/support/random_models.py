"""Models built by transformers, with no parameter equal to 0 or 1."""

from contextlib import contextmanager

import pytest

from tests.golden.cases import CASES


def register_models():
    """Adds a language model that transformers has, and has in no table."""
    import transformers
    from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

    config = transformers.AutoConfig.for_model("mistral4")
    transformers.AutoModelForCausalLM.register(type(config), Mistral4ForCausalLM, exist_ok=True)


def random_model(case, auto_class, **options):
    """Returns a torch model on the CPU in float32; skips the test without torch."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    register_models()
    config = transformers.AutoConfig.for_model(**CASES[case] | options)
    torch.manual_seed(0)
    model = getattr(transformers, auto_class).from_config(
        config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        corrections = [(name, x) for name, x in model.named_buffers() if "correction" in name]
        for name, parameter in (*model.named_parameters(), *corrections):
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            if "embed_tokens" in name and "gemma" not in config.model_type:
                spread = 0.3
            parameter.add_(torch.randn(parameter.shape) * spread)
            if name.endswith("linear_attn.dt_bias"):  # which would forget all but the last token
                parameter.sub_(5)
    return model.eval()


@contextmanager
def in_float64():
    """Makes transformers compute in float64 what it casts to float32: norms, angles, decays.

    Without it, logits of a model in float64 may be as far from exact as those in float32.
    """
    import torch

    kept, cast, default = torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = kept
        torch.Tensor.float = cast
        torch.set_default_dtype(default)


def exact_twin(model):
    """Returns the same model in float64, to be called within `in_float64`."""
    import torch
    import transformers

    with in_float64():
        twin = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**model.config.to_dict()),
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        twin.load_state_dict({name: x.double() for name, x in model.state_dict().items()})
    return twin.eval()
