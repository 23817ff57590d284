"""Renders chat templates as transformers compiles them.

Standard input: a list of {"template", "context"}. Output: for each {"text"} or {"error"}. strftime_now shows
2024-07-04 09:05:03.
"""
import datetime
import json
import sys

from transformers.utils import chat_template_utils as utils


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 4, 9, 5, 3)


utils.datetime = Clock


def render(case):
    try:
        text = utils._compile_jinja_template(case["template"]).render(**case["context"])
        text.encode("utf-8")
        return {"text": text}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


json.dump([render(case) for case in json.load(sys.stdin)], sys.stdout)
