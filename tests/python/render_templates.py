"""Renders chat templates as transformers compiles them.

Standard input: a list of {"template", "context"}. Output: for each {"text"} or {"error"}. strftime_now shows
2024-07-04 09:05:03.
"""
from clock import stop_the_clock
from question import answer, or_error
from transformers.utils import chat_template_utils as utils


def render(case):
    text = utils._compile_jinja_template(case["template"]).render(**case["context"])
    text.encode("utf-8")
    return {"text": text}


stop_the_clock()
answer(lambda asked: [or_error(render, case) for case in asked])
