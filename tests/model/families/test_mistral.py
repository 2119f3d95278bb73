"""Tests Mistral: all layers have the same attention window, or none has one."""

import pytest


def test_all_layers_slide(read):
    config = read("mistral")
    assert (config.window, config.sliding) == (9, (True, True, True))
    assert not config.attention_bias


def test_null_is_no_window_and_no_key_is_the_first_mistral_s(read):
    whole = read("mistral", {"sliding_window": None})
    assert (whole.window, whole.sliding) == (None, ())
    assert read("mistral", without=["sliding_window"]).window == 4096


def test_an_absent_head_is_not_tied(read):
    assert not read("mistral", without=["tie_word_embeddings"]).tied_embedding


@pytest.mark.parametrize("window", [9, None])
def test_it_is_written_in_its_own_keys(read, written, window):
    keys = written(read("mistral", {"sliding_window": window}))
    assert keys["sliding_window"] == window
    assert "sliding_window" in keys  # the default is the first Mistral's window
    assert keys["hidden_act"] == "silu"


def test_it_has_no_biases(read, tensors):
    assert not [name for name in tensors(read("mistral")) if name.endswith("bias")]
