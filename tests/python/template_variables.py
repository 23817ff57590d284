"""Prompts of checkpoints' own chat templates by AutoTokenizer of transformers, for a conversation of one message.

stdin: a list of folders; stdout: for each {"text"} or {"error"}.
"""
from question import answer, or_error
from transformers import AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()


def prompt(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {"text": tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)}


answer(lambda folders: [or_error(prompt, folder) for folder in folders])
