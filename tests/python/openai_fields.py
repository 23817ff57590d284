"""What requests of the openai package may hold: each field that its types have, at every depth, with values for it.

Standard output: {"chat": [...], "completions": [...]}, each a list of {"key", "with", "without"}. `key` is where a value
stands and the value, `messages[user].content[text].text="x"`: in brackets the `role` or `type` of which of several types
an object is, empty where a list's items are of one type. `with` is a request with that value, and `without` one that
differs from it in this field alone: it is left out there, or has another value where a request must have it. Both are as
small as the types allow.
"""

import json
import types
import typing
from typing import Literal, Union, get_args, get_origin

import typing_extensions as extensions
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat
from pydantic import TypeAdapter
from question import answer

# Two values of each plain type: where a field must be there, the other stands in its place.
PLAIN = {str: ["x", ""], int: [2, 1], float: [0.5, 0.0], bool: [True, False], type(None): [None]}
# A call's arguments are JSON in a text.
ARGUMENTS = ['{"x": 1}', ""]


def written(value):
    return json.dumps(value, separators=(",", ":"))


def is_union(kind):
    return get_origin(kind) in (Union, types.UnionType)


def members(kind):
    """The types that a value may be of. Names that are suggested for a string say nothing."""
    kinds = []
    for member in get_args(kind) if is_union(kind) else [kind]:
        kinds.extend(members(member) if is_union(member) else [member])
    return [k for k in kinds if not (get_origin(k) is Literal and str in kinds)]


def marked(kind):
    """Names of fields and their types as written. The package writes them as strings, in which Python's own
    `__required_keys__` does not see the marks."""
    for base in getattr(kind, "__orig_bases__", ()):
        if extensions.is_typeddict(base):
            yield from marked(base)
    hints = extensions.get_type_hints(kind, include_extras=True)
    for name in kind.__annotations__:
        mark = get_origin(hints[name])
        must = mark is extensions.Required or (kind.__total__ and mark is not extensions.NotRequired)
        yield name, get_args(hints[name])[0] if mark in (extensions.Required, extensions.NotRequired) else hints[name], must


def fields(kind):
    """name, type, whether it must be there; what tells types apart comes first."""
    by_name = {field[0]: field for field in marked(kind)}
    return sorted(by_name.values(), key=lambda field: field[0] not in ("type", "role"))


def label(kind):
    """Which of several types an object is."""
    for name, hint, _ in fields(kind):
        if name in ("type", "role") and get_origin(hint) is Literal:
            return get_args(hint)[0]
    return ""


def is_list(kind):
    origin = get_origin(kind)
    return origin is not None and origin is not Literal and not issubclass(origin, dict)


def least(kind):
    """A value of this type, as small as it gets."""
    kind = members(kind)[0]
    if extensions.is_typeddict(kind):
        given = {name: least(hint) for name, hint, must in fields(kind) if must}
        return given | {"arguments": ARGUMENTS[0]} if "arguments" in given else given
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) is dict:
        return {}
    if is_list(kind):
        return [least(get_args(kind)[0])]
    return {"x": 1} if kind is object else PLAIN[kind][0]


class Swap:
    """A value to stand in place of another where a field must be there. Else the field is left out."""

    def __init__(self, value=None):
        self.value = value


def values(kind, key):
    """What a field of this type may hold: (key, value, what differs from it in this alone or a Swap)."""
    choices = members(kind)
    several = sum(map(extensions.is_typeddict, choices)) > 1
    for member in choices:
        if extensions.is_typeddict(member):
            yield from objects(member, f"{key}[{label(member)}]" if several else key)
        elif get_origin(member) is dict:
            value = {"5": least(get_args(member)[1])}
            yield f"{key}={written(value)}", value, Swap({})
            yield f"{key}={{}}", {}, Swap(value)
        elif is_list(member):
            item = get_args(member)[0]
            yield f"{key}=[]", [], Swap([least(item)])
            # What objects are stands in the same brackets as the list.
            of_objects = any(map(extensions.is_typeddict, members(item)))
            for at, value, without in values(item, key if of_objects else key + "[]"):
                yield at, [value], Swap([without.value]) if isinstance(without, Swap) else [without]
        else:
            given = get_args(member) if get_origin(member) is Literal else PLAIN.get(member, [{"x": 1}])
            for value in given:
                other = next((v for v in given if v != value), None)
                yield f"{key}={written(value)}", value, Swap(other)


def objects(kind, key):
    for name, hint, must in fields(kind):
        base = least(kind)
        # What the types do not say: an assistant's message has something in it.
        if base == {"role": "assistant"} and name not in ("content", "refusal"):
            base["content"] = "x"
        inner = f"{key}.{name}" if key else name
        left_out = {k: v for k, v in base.items() if k != name}
        if not must and isinstance(least(hint), (dict, list)):
            yield inner, base | {name: least(hint)}, left_out
        if name == "arguments":
            for given, other in (ARGUMENTS, ARGUMENTS[::-1]):
                yield f"{inner}={written(given)}", base | {name: given}, base | {name: other}
            continue
        for at, value, without in values(hint, inner):
            if isinstance(without, Swap):
                left = base | {name: without.value} if must and without.value is not None else left_out
            else:
                left = base | {name: without}
            yield at, base | {name: value}, left


def requests(kind):
    check = TypeAdapter(kind)
    for key, given, without in objects(kind, ""):
        check.validate_python(given)
        yield {"key": key, "with": given, "without": without}


answer(
    lambda _: {
        "chat": list(requests(chat.CompletionCreateParamsNonStreaming)),
        "completions": list(requests(completion.CompletionCreateParamsNonStreaming)),
    }
)
