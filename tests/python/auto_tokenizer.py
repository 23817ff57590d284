"""What AutoTokenizer of transformers makes of checkpoints' tokenizers.

stdin: {"folders": [...], "texts": [...], "ids": [[...], ...]}
stdout: for each folder {"error": text} or {"special", "plain", "skipped", "written", "eos", "classes"}: ids of each text
with and without special tokens, and the texts of each list of ids with special tokens left out and written. An id too
large for the tokenizer writes nothing.
"""
from question import answer, or_error
from transformers import AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()


def made(folder, texts, ids):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {
        "special": [tokenizer.encode(text) for text in texts],
        "plain": [tokenizer.encode(text, add_special_tokens=False) for text in texts],
        "skipped": [tokenizer.decode(some, skip_special_tokens=True) for some in ids],
        "written": [tokenizer.decode(some, skip_special_tokens=False) for some in ids],
        "eos": tokenizer.eos_token_id,
        "class": type(tokenizer).__name__,
    }


answer(lambda asked: [or_error(made, folder, asked["texts"], asked["ids"]) for folder in asked["folders"]])
