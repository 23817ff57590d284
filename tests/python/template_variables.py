"""Prompts of checkpoints' own chat templates by AutoTokenizer of transformers, for a conversation of one message.

stdin: a list of folders; stdout: for each {"text"} or {"error"}.
"""
import json
import sys

from transformers import AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()


def answer(folder):
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return {"text": tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)}
    except BaseException as error:  # a panic of the Rust library is no Exception
        return {"error": f"{type(error).__name__}: {error}"[:300]}


folders = json.load(sys.stdin)
# The Rust library says what it drops on standard output.
answers, sys.stdout = sys.stdout, sys.stderr
json.dump([answer(folder) for folder in folders], answers)
