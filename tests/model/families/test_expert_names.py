"""Tests the names of the tensors of experts."""

from rl4p.model.families import FAMILIES


def test_first_layers_are_dense_and_wider_than_an_expert(read, tensors, written):
    config = read("glm4_moe")
    assert config.feed_forwards == ("gated", "experts", "experts")
    assert (config.feed_forward_width, config.expert_width, config.shared_width) == (48, 24, 48)
    names = tensors(config)
    assert "model.layers.0.mlp.gate_proj.weight" in names
    assert "model.layers.1.mlp.gate_proj.weight" not in names
    assert "model.layers.0.mlp.gate.weight" not in names
    correction = names["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert (correction.layer, correction.expert, correction.transposed) == (1, 0, False)
    assert "model.layers.2.mlp.experts.7.down_proj.weight" in names
    keys = written(config)
    assert (keys["n_shared_experts"], keys["first_k_dense_replace"]) == (2, 1)
    assert keys["num_nextn_predict_layers"] == 0


def test_fused_experts_stand_gate_before_up(read):
    parts = {
        tensor.path[-1]: tensor.part
        for tensor in FAMILIES["granitemoe"].names(read("granitemoe"))
        if tensor.name == "model.layers.0.block_sparse_moe.input_linear.weight"
    }
    assert parts["gate"] == (1, 0, 1, 96, 1)
    assert parts["up"] == (1, 48, 1, 96, 1)
