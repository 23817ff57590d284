"""Holds answers of a batch to the types of the openai package.

Standard input: {"answers": [line of the answer file, ...]}. Standard output: {"faults": [what is wrong with which],
"chat": n, "completions": n, "errors": n}: how many of each were found right.
"""

from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject
from package_types import extras, without_first_null
from question import answer

# Fields of ours.
OURS = {"timing", "tool_call_error"}


def check(given, counts):
    assert set(given) == {"id", "custom_id", "response", "error"}, sorted(given)
    assert isinstance(given["id"], str)
    response, error = given["response"], given["error"]
    if error is not None:
        assert set(error) == {"code", "message"}, sorted(error)
        assert all(isinstance(text, str) for text in error.values())
    if response is None:
        assert error is not None
        return
    assert isinstance(response["request_id"], str)
    body = response["body"]
    if response["status_code"] != 200:
        ErrorObject.model_validate(body["error"], strict=True)
        counts["errors"] += 1
        return
    assert error is None
    kinds = {"chat.completion": ("chat", ChatCompletion), "text_completion": ("completions", Completion)}
    name, kind = kinds[body["object"]]
    parsed = kind.model_validate(without_first_null(body), strict=True)
    unknown = set(extras(parsed)) - {"." + name for name in OURS}
    assert not unknown, unknown
    # What the types leave optional only because older servers left it out.
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == parsed.usage.prompt_tokens + parsed.usage.completion_tokens
    assert [choice.index for choice in parsed.choices] == list(range(len(parsed.choices)))
    for choice in parsed.choices if name == "chat" else []:
        assert choice.message.content is not None or choice.message.tool_calls
        for token in (choice.logprobs.content or []) if choice.logprobs else []:
            assert token.bytes is not None and len(token.top_logprobs) <= 20
    counts[name] += 1


def held(asked):
    counts = {"chat": 0, "completions": 0, "errors": 0}
    faults = []
    for given in asked["answers"]:
        try:
            check(given, counts)
        except Exception as error:  # whatever a type says is wrong
            faults.append(f"{given.get('custom_id')}: {type(error).__name__}: {error}")
    return {"faults": faults, **counts}


answer(held)
