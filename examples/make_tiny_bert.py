"""Make a BERT of 0.1 million random weights, to try `fine_tuning.py` without a download.

Run `python make_tiny_bert.py messages.csv tiny-bert` with a Python that has transformers and PyTorch, such as
~/.cache/kfp-distributed/transformers/bin/python, which `make environments` creates.
"""

import csv
import sys
from pathlib import Path


def make_tiny_bert(texts: list[str], folder: Path, vocabulary_size: int = 300, seed: int = 0) -> None:
    """Write a model folder as `save_pretrained` does: config.json, the weights, and a WordPiece tokenizer.

    Args:
        texts: Texts from which the tokenizer learns its pieces of words.
        folder: Folder to create.
        vocabulary_size: Largest number of pieces.
        seed: Seed of the weights.
    """
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=vocabulary_size, show_progress=False)
    (vocabulary,) = tokenizer.save_model(str(folder))
    BertTokenizerFast(vocabulary).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        messages = [row["message"] for row in csv.DictReader(file)]
    make_tiny_bert(messages, Path(sys.argv[2]))
