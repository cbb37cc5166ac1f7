"""The size of a language model, and the length of its rows, by its config.json (pure)."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters

_LARGEST = 10**7

_ATTENTION_BIAS, _ALL_BIASES = ("attention_bias",), ("attention_bias", "mlp_bias")

_FEATURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"biases": _ALL_BIASES},
    "mistral": {"keys": 8},
    "granite": {"biases": _ALL_BIASES},
    "qwen2": {"keys": 32, "has_query_biases": True},
    "qwen3": {"keys": 32, "head": 128, "norms_of_heads": True, "biases": _ATTENTION_BIAS},
    "olmo2": {"norms_of_all_heads": True, "biases": _ATTENTION_BIAS},
    "olmo3": {"norms_of_all_heads": True, "biases": _ATTENTION_BIAS},
    "smollm3": {"keys": 4, "ties": True, "biases": _ALL_BIASES},
    "gemma": {"keys": 16, "head": 256, "ties": True, "biases": _ATTENTION_BIAS},
    "gemma2": {"keys": 4, "head": 256, "ties": True, "norms": 4, "biases": _ATTENTION_BIAS},
    "gemma3_text": {
        "keys": 4,
        "head": 256,
        "ties": True,
        "norms": 4,
        "norms_of_heads": True,
        "biases": _ATTENTION_BIAS,
    },
    "phi3": {"fuses": True},
}
"""What each model_type of transformers has in place of what Llama has: defaults of config.json, and parts of a layer.
Tests compare them with transformers."""

MODEL_TYPES = tuple(_FEATURES)
"""Each model_type that `model_size` knows."""


class ModelSize(NamedTuple):
    """Sizes of a decoder.

    Attributes:
        layers: Number of its layers.
        width: Numbers of a token between the layers.
        heads: Numbers of a token in all heads of the queries.
        inner: Numbers of a token inside the feed-forward part of a layer.
        linear: Name, such as "mlp.up_proj", inputs and outputs of each linear layer in a layer.
        vocabulary: Number of tokens in the vocabulary.
        parameters: Number of all parameters.
        is_tied: Whether the head has the weight of the embeddings.
    """

    layers: int
    width: int
    heads: int
    inner: int
    linear: tuple[tuple[str, int, int], ...]
    vocabulary: int
    parameters: int
    is_tied: bool

    @property
    def layer(self) -> int:
        """Number of the weights of the linear layers in a layer."""
        return sum(inputs * outputs for _, inputs, outputs in self.linear)

    def adapter(self, rank: int, targets: str) -> int:
        """Return the number of parameters of an adapter.

        Args:
            rank: The parameter lora_r.
            targets: The parameter lora_target_modules.

        Raises:
            ValueError: It names no layer.
        """
        layers = [
            (f"model.layers.{number}.{name}", inputs + outputs)
            for number in range(self.layers)
            for name, inputs, outputs in self.linear
        ]
        if targets == "all-linear":
            return rank * sum(size for _, size in layers)
        if not self.is_tied:
            layers.append(("model.embed_tokens", self.vocabulary + self.width))
        ends = target_ends(targets, [name for name, _ in layers])
        return rank * sum(size for name, size in layers if f".{name}".endswith(ends))


def target_ends(targets: str, layers: Collection[str]) -> tuple[str, ...]:
    """Return the ends of the names of layers that lora_target_modules has, each after a dot; none for "all-linear".

    Args:
        targets: The parameter.
        layers: Names of the layers that an adapter may have. peft needs one of any target, and this one of each.

    Raises:
        ValueError: A target is the name of no layer.
    """
    names = () if targets == "all-linear" else tuple(map(str.strip, targets.split(",")))
    for target in names:
        if not target or not any(f".{layer}".endswith(f".{target}") for layer in layers):
            allowed = ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))
            raise ValueError(
                f"lora_target_modules is {targets!r}, and no layer whose weight is not also that of the head has the "
                f'name {target!r}; allowed are "all-linear", or names of layers, separated by commas: {allowed}'
            )
    return tuple(f".{name}" for name in names)


def model_size(config: Mapping[str, Any]) -> ModelSize | None:
    """Return the size of a model; None if its model_type is none of those that are known, or its weights are quantized.

    Args:
        config: Content of config.json.

    Raises:
        ArithmeticError, KeyError, TypeError, ValueError: It lacks a number, or has one that cannot be.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _FEATURES or config.get("quantization_config"):
        return None
    features = _FEATURES[kind]
    width, inner, vocabulary = (int(config[name]) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or features.get("head") or width // heads)
    if not all(0 < number <= _LARGEST for number in (width, inner, vocabulary, layers, heads, head)):
        raise ValueError(f"a size is not a number from 1 to {_LARGEST:,}")
    queries = heads * head
    keys = int(config.get("num_key_value_heads", features.get("keys")) or heads) * head
    linear: tuple[tuple[str, int, int], ...] = (
        ("self_attn.q_proj", width, queries),
        ("self_attn.k_proj", width, keys),
        ("self_attn.v_proj", width, keys),
        ("self_attn.o_proj", queries, width),
        ("mlp.gate_proj", width, inner),
        ("mlp.up_proj", width, inner),
        ("mlp.down_proj", inner, width),
    )
    if features.get("fuses"):
        joint = ("self_attn.qkv_proj", width, queries + 2 * keys), ("mlp.gate_up_proj", width, 2 * inner)
        linear = (joint[0], linear[3], joint[1], linear[6])
    of_biases = {"attention_bias": queries + 2 * keys + width, "mlp_bias": 2 * inner + width}
    biases = sum(of_biases[name] for name in features.get("biases", ()) if config.get(name))
    biases += (queries + 2 * keys) * bool(features.get("has_query_biases"))
    norms = features.get("norms", 2) * width + 2 * head * bool(features.get("norms_of_heads"))
    norms += (queries + keys) * bool(features.get("norms_of_all_heads"))
    is_tied = bool(config.get("tie_word_embeddings", features.get("ties", False)))
    weights = sum(inputs * outputs for _, inputs, outputs in linear)
    parameters = layers * (weights + biases + norms) + (2 - is_tied) * vocabulary * width + width
    return ModelSize(layers, width, queries, inner, linear, vocabulary, parameters, is_tied)


_TABLES = {"biogpt", "codegen", "ctrl", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "openai-gpt", "opt"}
"""Values of model_type of decoders with a table of positions. Most others compute a position, whatever its number is
(RoPE)."""


def positions(config: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a model has positions for; None if it has no limit, or none that is known.

    A factor of RoPE scaling may be contained in max_position_embeddings (Llama 3.1) or not (Qwen 2.5 with YaRN). It is
    if original_max_position_embeddings is less. Without this number, transformers takes max_position_embeddings for it
    where it needs one, and of a linear factor nobody knows.

    Args:
        config: Content of config.json.
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    if not _is_count(limit) or config.get("alibi"):
        return None
    longest = limit
    for rope in _ropes(config.get("rope_parameters") or config.get("rope_scaling")):
        factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
        if original is None and (rope.get("rope_type") or rope.get("type")) in ("yarn", "dynamic"):
            original = limit
        if isinstance(factor, int | float) and 0 < factor < _LARGEST and _is_count(original) and original >= limit:
            longest = max(longest, int(factor * original))
    return longest


def has_table(config: Mapping[str, Any]) -> bool:
    """Return whether a model has a table of its positions, so that it cannot compute a longer row.

    Args:
        config: Content of config.json.
    """
    return config.get("model_type") in _TABLES


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _ropes(parameters: object) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of RoPE, which a model may have for each type of layers."""
    if isinstance(parameters, Mapping):
        yield parameters
        yield from (part for part in parameters.values() if isinstance(part, Mapping))


def check_length(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Check that a model has positions for rows of max_length, and return a warning if it has seen fewer; else "".

    The default of max_length is not checked: rows may all be shorter, and the replicas check them. Nor are packed rows,
    each of which begins at the first position.

    Args:
        config: Content of config.json.
        parameters: Parameters of `language_model` or `language_evaluation` that are set.

    Raises:
        ValueError: It has not.
    """
    default = LanguageModelParameters.max_length
    length = parameters.get("max_length", default)
    if length == default or parameters.get("packing"):
        return ""
    return check_row(config, length, f"max_length is {length}")


def check_row(config: Mapping[str, Any], length: int, what: str) -> str:
    """Check that a model has positions for a row. See `check_length`.

    Args:
        config: Content of config.json.
        length: Tokens of the row.
        what: What has this length, for the message.

    Raises:
        ValueError: It has not.
    """
    limit = positions(config)
    if not limit or length <= limit:
        return ""
    if has_table(config):
        raise ValueError(
            f"{what}, and the model has positions for {limit} tokens, as its config.json says: set max_length to "
            f"{limit} or less, or use a model for longer rows"
        )
    return (
        f"{what}, and the model is made for {limit} tokens, as its config.json says: it has not learned more positions"
    )
