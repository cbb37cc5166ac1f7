"""The longest row that a language model has positions for."""

import pytest

from kfp_distributed.trainers.programs.model_size import check_length, positions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "llama", "max_position_embeddings": 2048}, 2048),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "bloom"}, None),
        ({"model_type": "falcon", "alibi": True, "max_position_embeddings": 2048}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_parameters": YARN | {"factor": 2}}, 131072),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 2.0}}, 4096),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 2048),
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"factor": 8}}}, 32768),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, 4096),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
    ],
)
def test_no_model_is_limited_to_less_than_it_can(config, limit):
    assert positions(config) == limit
    for length in (limit or 2**30, None):
        check_length(config, {"max_length": length} if length else {})
    if limit:
        with pytest.raises(ValueError, match=f"max_length is {limit + 1}, .* set max_length to {limit} or less"):
            check_length(config, {"max_length": limit + 1})
