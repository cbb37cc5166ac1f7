"""The longest row that a language model has positions for, or is made for."""

import math

import pytest

from kfp_distributed.trainers.programs.model_size import check_length, check_row, positions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "llama", "max_position_embeddings": 4096}, 4096),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "bloom"}, None),
        ({"model_type": "falcon", "alibi": True, "max_position_embeddings": 1024}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_parameters": YARN | {"factor": 2}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": YARN | {"factor": 32.0}}, 131072),
        ({"max_position_embeddings": 1024, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
        ({"max_position_embeddings": 1024, "rope_scaling": {"type": "linear", "factor": 4.0}}, 1024),
        ({"max_position_embeddings": 1024, "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 1024),
        ({"max_position_embeddings": 32768, "rope_parameters": {"full_attention": YARN}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": math.inf}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": math.nan}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": YARN | {"original_max_position_embeddings": "1"}}, 4096),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
    ],
)
def test_what_a_model_is_made_for(config, limit):
    assert positions(config) == limit
    assert check_length(config, {"max_length": limit or 2**30}) == ""
    if limit and config.get("model_type") != "gpt2":
        assert f"the model is made for {limit} tokens" in check_length(config, {"max_length": limit + 1})


def test_a_row_that_a_table_of_positions_does_not_hold_is_refused():
    config = {"model_type": "gpt2", "n_positions": 1024}
    with pytest.raises(ValueError, match=r"max_length is 1025, .* set max_length to 1024 or less"):
        check_length(config, {"max_length": 1025})
    # The default, also if it is set, says nothing about the rows. Packed rows begin at the first position.
    assert check_length(config, {}) == check_length(config, {"max_length": 2048}) == ""
    assert check_length(config, {"max_length": 4096, "packing": True}) == ""
    with pytest.raises(ValueError, match="the longest row has 1025 tokens, and the model has positions for 1024"):
        check_row(config, 1025, "the longest row has 1025 tokens")
