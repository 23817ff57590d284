"""What Python knows of characters, as a template of transformers sees it.

stdin: {"template", "texts": lists of code points}; stdout: {"unicode": version, "rendered": for each the template with
its characters as `text`, "unassigned": the code points in them that this Python's Unicode has none at}.
"""
import json
import sys
import unicodedata

from transformers.utils import chat_template_utils as utils

asked = json.load(sys.stdin)
template = utils._compile_jinja_template(asked["template"])
json.dump(
    {
        "unicode": unicodedata.unidata_version,
        "rendered": [template.render(text="".join(map(chr, codes))) for codes in asked["texts"]],
        "unassigned": [code for codes in asked["texts"] for code in codes if unicodedata.category(chr(code)) == "Cn"],
    },
    sys.stdout,
)
