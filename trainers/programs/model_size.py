"""The size of a language model, by its config.json (pure)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_FEATURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "granite": {},
    "qwen2": {"biases": "q k v"},
    "qwen3": {"head": 128, "norms_of_heads": True},
    "olmo2": {"norms_of_all_heads": True},
    "olmo3": {"norms_of_all_heads": True},
    "smollm3": {"ties": True},
    "gemma": {"head": 256, "ties": True},
    "gemma2": {"head": 256, "ties": True, "norms": 4},
    "gemma3_text": {"head": 256, "ties": True, "norms": 4, "norms_of_heads": True},
    "phi3": {"fuses": True},
}
"""What the layers of each model_type of transformers have beside those of Llama. Tests compare them with transformers."""


class ModelSize(NamedTuple):
    """Sizes of a decoder.

    Attributes:
        layers: Number of its layers.
        width: Numbers of a token between the layers.
        heads: Numbers of a token in all heads of the queries.
        inner: Numbers of a token inside the feed-forward part of a layer.
        linear: Name, inputs and outputs of each linear layer in a layer.
        vocabulary: Number of tokens in the vocabulary.
        parameters: Number of all parameters.
    """

    layers: int
    width: int
    heads: int
    inner: int
    linear: tuple[tuple[str, int, int], ...]
    vocabulary: int
    parameters: int

    @property
    def layer(self) -> int:
        """Number of the weights of the linear layers in a layer."""
        return sum(inputs * outputs for _, inputs, outputs in self.linear)

    def adapter(self, rank: int, targets: str) -> int:
        """Return the number of parameters of an adapter.

        Args:
            rank: The parameter lora_r.
            targets: The parameter lora_target_modules.
        """
        ends = tuple(name.strip() for name in targets.split(","))
        used = (size for size in self.linear if targets == "all-linear" or size[0].endswith(ends))
        return self.layers * rank * sum(inputs + outputs for _, inputs, outputs in used)


def model_size(config: Mapping[str, Any]) -> ModelSize | None:
    """Return the size of a model; None if its model_type is none of those that are known.

    Args:
        config: Content of config.json.

    Raises:
        KeyError, TypeError, ValueError: It lacks a number.
    """
    kind = config.get("model_type")
    if kind not in _FEATURES:
        return None
    features = _FEATURES[kind]
    width, inner, vocabulary = (int(config[name]) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or features.get("head") or width // heads)
    queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
    linear = (
        *(("q_proj", width, queries), ("k_proj", width, keys), ("v_proj", width, keys), ("o_proj", queries, width)),
        *(("gate_proj", width, inner), ("up_proj", width, inner), ("down_proj", inner, width)),
    )
    if features.get("fuses"):
        linear = (("qkv_proj", width, queries + 2 * keys), linear[3], ("gate_up_proj", width, 2 * inner), linear[6])
    biases = (queries + 2 * keys + width) if config.get("attention_bias") else 0
    biases = (queries + 2 * keys) if "biases" in features else biases
    biases += (2 * inner + width) if config.get("mlp_bias") else 0
    norms = features.get("norms", 2) * width + 2 * head * bool(features.get("norms_of_heads"))
    norms += (queries + keys) * bool(features.get("norms_of_all_heads"))
    tables = 1 if config.get("tie_word_embeddings", features.get("ties", False)) else 2
    weights = sum(inputs * outputs for _, inputs, outputs in linear)
    parameters = layers * (weights + biases + norms) + tables * vocabulary * width + width
    return ModelSize(layers, width, queries, inner, linear, vocabulary, parameters)
