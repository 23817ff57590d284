"""What the scripts here share: a question on standard input, its answer on standard output, JSON both."""
import json
import sys


def answer(work):
    """Prints what `work` makes of the question. What libraries print meanwhile is no part of it."""
    asked = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr
    json.dump(work(asked), answers)


def or_error(work, *arguments):
    """What `work` gives, or {"error": text}."""
    try:
        return work(*arguments)
    except BaseException as error:  # a panic of a Rust library is no Exception
        return {"error": f"{type(error).__name__}: {error}"[:300]}
