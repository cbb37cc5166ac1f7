"""The memory of a GPU that a fine-tuning takes, before it starts (pure).

Bytes for each parameter are those of the trainer `language_model`: an adapter of 32-bit floats with the 16 bits of what
it belongs to, 4 bits of linear layers with the method "qlora", or 32 bits where all parameters are trained; gradients
and two moments of AdamW of 32 bits each; and a copy of the gradients where ranks average them. With the
objective "dpo", a row has two answers, and with the method "full" there is the base model, too. The factors of
activations were found by counting the bytes of tensors of small models of the type of Llama, see
tests/trainers/test_memory_estimate.py.
"""

from typing import NamedTuple

from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters, micro_batches
from kfp_distributed.trainers.programs.model_size import ModelSize

CONTEXT = 3 * 2**29
"""Bytes that are no tensors: CUDA, its libraries, and what the allocator of PyTorch cannot use. An assumption."""

TOKENS, _ENTRIES = 4096, 16384
"""Logits that trl has at once, at most: of so many tokens, for so many entries of the vocabulary."""

_QUANTIZED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a parameter in NF4: 4 bits, 8 bits for 64 of them, and 32 bits for 256 of these: the double quantization of
QLoRA (Dettmers et al. 2023)."""


class MemoryEstimate(NamedTuple):
    """Bytes on each GPU, in the moment in which they are the most.

    Attributes:
        weights: Weights, of the adapter too. Of a sharded model, those of the rank, and those that it has from others.
        gradients: Gradients, and their copy in which ranks average them.
        optimizer: Moments of the optimizer.
        activations: Activations of the tokens that a rank computes at once.
        logits: Logits of them, and their gradients.
        context: What is no tensor.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    context: int = CONTEXT

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self)


def memory_estimate(
    size: ModelSize, parameters: LanguageModelParameters, ranks: int, at_once: int = TOKENS
) -> MemoryEstimate:
    """Return the memory of a rank with a GPU that computes with bfloat16.

    Args:
        size: Size of the base model.
        parameters: Parameters of the trainer.
        ranks: Number of ranks.
        at_once: Tokens whose logits trl has at once. Default: TOKENS.

    Raises:
        ValueError: batch_size cannot be divided among the ranks, or lora_target_modules names no layer.
    """
    rows, accumulation = micro_batches(parameters.batch_size, parameters.micro_batch_size, ranks)
    is_full, is_preference = parameters.method == "full", parameters.objective == "dpo"
    tokens = rows * parameters.max_length * (2 if is_preference else 1)  # A row has two answers.
    parts = ranks if parameters.sharding == "fsdp" else 1
    trained = size.parameters if is_full else size.adapter(parameters.lora_r, parameters.lora_target_modules)
    weights = 4 * trained + {"full": 0, "lora": 2 * size.parameters, "qlora": _quantized(size)}[parameters.method]
    weights += 4 * trained if is_full and is_preference else 0  # The base model, to which the trained one is compared.
    logits = 4 * min(tokens, at_once) * min(size.vocabulary, _ENTRIES) + 8 * tokens * size.width
    # Bytes that a layer keeps for its backward pass, those that it has for a moment, and those between two layers.
    # Where all are trained and not sharded, those between the layers have 32 bits. An adapter has its inputs with 32
    # bits, too, and a sharded one with 16.
    has_floats, is_small = is_full and parts == 1, not is_full and parts > 1
    kept = tokens * ((24 if has_floats else 9 if is_small else 18) * size.width + 12 * size.heads + 8 * size.inner)
    passing = tokens * (4 * size.width + 2 * size.inner if is_small else 8 * size.width + 6 * size.inner)
    between = tokens * (4 if has_floats else 2) * size.width
    all_kept = size.layers * (between if parameters.activation_checkpointing else kept)
    own = 4 * trained // parts
    before = own if accumulation > 1 else 0
    saves = parameters.activation_checkpointing
    if parts > 1:
        # 16 bits of the weights that a rank needs now or next, gradients of them, and 32 bits of these to be summed up.
        layer, table, gradient = 2 * size.layer, 2 * size.vocabulary * size.width, 3 if is_full else 0
        moments = [
            (table, before + gradient * table, all_kept, logits),
            (2 * layer, before + gradient * layer, all_kept + saves * kept + passing, 0),
            (table + layer, own + gradient * table, kept + passing, 0),
        ]
    else:
        # Where all parameters are trained, autocast keeps their 16 bits until the end of the forward pass.
        copies = 2 * size.layers * size.layer if is_full else 0
        buckets = 4 * trained if ranks > 1 else 0
        moments = [
            (0, before + buckets, all_kept + copies, logits),
            (0, before + buckets, all_kept + (kept + passing if saves else copies + passing), 0),
            (0, own + buckets, kept + passing, 0),
        ]
    gathered, gradients, activations, logits = max(moments, key=sum)
    return MemoryEstimate(weights // parts + gathered, gradients, 8 * trained // parts, activations, logits)


def _quantized(size: ModelSize) -> int:
    """Return the bytes of a quantized base model. The weights of one of its layers have 16 bits for a moment."""
    linear, largest = size.layers * size.layer, max(inputs * outputs for _, inputs, outputs in size.linear)
    return int(_QUANTIZED * linear) + 2 * (size.parameters - linear + largest)
