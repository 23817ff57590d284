"""What values have beside the fields of the openai package's types, and what these do not allow."""
from pydantic import BaseModel


def without_first_null(body):
    """A completion whose choices have logprobs of their prompts: the first token's are null, which the API gives and its types do not know."""
    for choice in body["choices"]:
        logprobs = choice.get("logprobs") or {}
        for name in ("token_logprobs", "top_logprobs"):
            if logprobs.get(name) and logprobs[name][0] is None:
                logprobs[name] = [{} if name == "top_logprobs" else 0.0, *logprobs[name][1:]]
    return body


def extras(value, path=""):
    """Paths of fields that the package's types do not have."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from extras(item, path + "[]")
