"""Prompts of conversations by apply_chat_template of transformers, after what the OpenAI format means by them.

Standard input: {"templates": [source, …], "conversations": [body, …]}. Output: for each template a list with a prompt
for each conversation, or null where the template refuses it. A body has messages, and perhaps tools, tool_choice,
chat_template_kwargs, continue_final_message and add_generation_prompt.
"""
import copy
import json
import re
import sys

from clock import stop_the_clock
from question import answer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


def arguments(function):
    """A call's arguments are a mapping; rows carry them as text."""
    given = function.get("arguments")
    if not isinstance(given, dict):
        function["arguments"] = json.loads(given) if given and given.strip() else {}


def meaning(message, takes_parts):
    message = {key: value for key, value in message.items() if value is not None and not (key == "tool_calls" and value == [])}
    if message["role"] == "assistant" and "content" not in message:
        said = message.get("refusal", "")
        rest = {key: value for key, value in message.items() if key not in ("role", "refusal")}
        message = {"role": message["role"], "content": said, **rest}
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part for part in content
        ]
        message["content"] = content if takes_parts else "".join(part["text"] for part in content)
    elif takes_parts == "always":
        message["content"] = [{"type": "text", "text": content}]
    for call in message.get("tool_calls", []):
        arguments(call.get("function", call))
    if "function_call" in message:
        arguments(message["function_call"])
    return message


def takes_parts(source):
    """By hand, for the templates of the test: whether they go through a message's parts."""
    if re.search(r"\bmessage \| tojson", source):
        return True
    if not re.search(r"for \w+ in (message\.)?content\b", source):
        return False
    return True if "content is string" in source else "always"


def prompt(source, body):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<|startoftext|>": 0, "<|im_end|>": 1, "<|pad|>": 2})),
        bos_token="<|startoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=source,
    )
    body = copy.deepcopy(body)
    messages = [meaning(message, takes_parts(source)) for message in body["messages"]]
    tools = body.get("tools") or None
    if body.get("tool_choice") == "none":
        tools = None
    continued = body.get("continue_final_message") or False
    generation = body.get("add_generation_prompt")
    try:
        return tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            continue_final_message=continued,
            add_generation_prompt=not continued if generation is None else generation,
            **body.get("chat_template_kwargs") or {},
        )
    except Exception as error:
        print(f"{error}", file=sys.stderr)
        return None


stop_the_clock()
answer(lambda asked: [[prompt(source, body) for body in asked["conversations"]] for source in asked["templates"]])
