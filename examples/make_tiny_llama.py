"""Make a Llama of 0.1 million random weights, to try `fine_tuning.py` without a download.

Run `python make_tiny_llama.py messages.csv tiny-llama` with a Python that has transformers and PyTorch, such as
~/.cache/kfp-distributed/torch2/bin/python, which `make environments` creates.
"""

import csv
import sys
from pathlib import Path

CHAT_TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message['content'] + '<|im_end|>' }}
{%- endif %}{{ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""How conversations are written, with the answers marked."""


def make_tiny_llama(texts: list[str], folder: Path, vocabulary_size: int = 500, seed: int = 0) -> None:
    """Write a model folder as `save_pretrained` does: config.json, the weights, and a tokenizer.

    Args:
        texts: Texts from which the tokenizer learns its pieces of words.
        folder: Folder to create.
        vocabulary_size: Largest number of pieces.
        seed: Seed of the weights.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<pad>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        rows = [f"{row['message']} {row['team']}" for row in csv.DictReader(file)]
    make_tiny_llama(rows, Path(sys.argv[2]))
