"""What Python knows of characters, as a template of transformers sees it.

stdin: {"template", "texts": lists of code points}; stdout: {"unicode": version, "rendered": for each the template with
its characters as `text`, "unassigned": the code points in them that this Python's Unicode has none at}.
"""
import unicodedata

from question import answer
from transformers.utils import chat_template_utils as utils


def known(asked):
    template = utils._compile_jinja_template(asked["template"])
    codes = [code for text in asked["texts"] for code in text]
    return {
        "unicode": unicodedata.unidata_version,
        "rendered": [template.render(text="".join(map(chr, text))) for text in asked["texts"]],
        "unassigned": [code for code in codes if unicodedata.category(chr(code)) == "Cn"],
    }


answer(known)
