"""Asks a server by the openai package as its users do: sync, async, streams, batches. All that comes is held to the package's types.

Standard input: {"url": of the server, "key": its key}. Standard output: {"faults": [what is wrong], "checked": how many answers and chunks
were found right}.
"""

import asyncio
import json
import time

import openai
from openai.types import Completion
from package_types import extras, without_first_null
from question import answer

MESSAGES = [{"role": "user", "content": "hi"}]
# Fields of ours.
OURS = {".timing", ".max_model_len", ".choices[].delta.tool_call_error", ".choices[].message.tool_call_error"}


class Checks:
    def __init__(self):
        self.faults, self.checked = [], 0

    def typed(self, value):
        """The client builds its types without looking: this looks."""
        kind = type(value)
        fields = value.to_dict(mode="json")
        if isinstance(value, Completion) and value.usage is None:
            # The type is that of whole answers too, which have a reason. A chunk before the last has none.
            for choice in fields["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        if isinstance(value, Completion):
            without_first_null(fields)
        try:
            kind.model_validate(fields, strict=True)
            unknown = set(extras(value)) - OURS
            assert not unknown, f"unknown fields {unknown}"
            self.checked += 1
        except Exception as error:  # whatever a type says is wrong
            self.faults.append(f"{kind.__name__}: {error}")
        return value

    def that(self, holds, what):
        self.checked += 1
        if not holds:
            self.faults.append(what)


def sync(client, checks):
    for model in client.models.list():
        checks.typed(model)
        checks.typed(client.models.retrieve(model.id))
    whole = checks.typed(client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=1, logprobs=True, top_logprobs=2))
    parts = ["", ""]
    for chunk in client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=1, logprobs=True, top_logprobs=2,
            stream=True, stream_options={"include_usage": True}):
        checks.typed(chunk)
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    # What the first request has computed, the second may have from there.
    used = [answer.usage.model_copy(update={"prompt_tokens_details": None}) for answer in (chunk, whole)]
    checks.that(used[0] == used[1], f"usage {chunk.usage} of a stream, {whole.usage} of the whole")
    texts = [choice.message.content for choice in whole.choices]
    checks.that(parts == texts, f"a stream has {parts}, the whole answer {texts}")
    for echo in (False, True):
        asked = dict(model="m", prompt=["a", "b"], max_tokens=8, logprobs=2, echo=echo)
        whole = checks.typed(client.completions.create(**asked))
        parts = ["", ""]
        for chunk in client.completions.create(**asked, stream=True):
            checks.typed(chunk)
            for choice in chunk.choices:
                parts[choice.index] += choice.text
        texts = [choice.text for choice in whole.choices]
        checks.that(parts == texts, f"a stream has {parts}, the whole answer {texts}")
        checks.that(not echo or [text[0] for text in texts] == ["a", "b"], f"{texts} do not begin with their prompts")
    with client.chat.completions.stream(model="m", messages=MESSAGES, max_tokens=4) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot
    checks.that({"chunk", "content.delta", "content.done"} <= kinds, f"the helper for streams tells of {kinds}")
    checks.that(final.choices[0].finish_reason == "length", f"the helper for streams ends with {final}")
    try:
        client.chat.completions.create(model="m", messages=[])
        checks.that(False, "no messages were taken")
    except openai.BadRequestError as error:
        checks.that(error.code == "empty_prompt" and error.type == "invalid_request_error", f"{error.code}, {error.type}")
    try:
        client.with_options(api_key="other").models.list()
        checks.that(False, "another key was taken")
    except openai.AuthenticationError as error:
        checks.that(error.code == "invalid_api_key", f"{error.code}")


async def concurrent(asked, checks):
    async with openai.AsyncOpenAI(base_url=asked["url"], api_key=asked["key"]) as client:
        async def one(number):
            return checks.typed(await client.completions.create(model="m", prompt=f"p{number}", max_tokens=5))

        async def streamed(number):
            text = ""
            stream = await client.completions.create(model="m", prompt=f"p{number}", max_tokens=5, stream=True)
            async for chunk in stream:
                text += checks.typed(chunk).choices[0].text
            return text

        whole = await asyncio.gather(*map(one, range(30)))
        parts = await asyncio.gather(*map(streamed, range(30)))
        checks.that([each.choices[0].text for each in whole] == parts, "streams differ from whole answers")


def batches(client, checks):
    rows = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions",
             "body": {"model": "m", "messages": MESSAGES if n != 3 else [], "max_tokens": n + 1}} for n in range(20)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = checks.typed(client.files.create(file=("rows.jsonl", content), purpose="batch"))
    batch = checks.typed(client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"}))
    until = time.monotonic() + 60
    while batch.status not in ("completed", "failed") and time.monotonic() < until:
        time.sleep(0.05)
        batch = checks.typed(client.batches.retrieve(batch.id))
    checks.that(batch.status == "completed", f"{batch}")
    counts = batch.request_counts
    checks.that((counts.total, counts.completed, counts.failed) == (20, 19, 1), f"{counts}")
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    checks.that([row["custom_id"] for row in answers] == [f"r{n}" for n in range(20) if n != 3], "rows are missing")
    errors = client.files.content(batch.error_file_id).text.splitlines()
    checks.that(len(errors) == 1 and json.loads(errors[0])["custom_id"] == "r3", f"{errors}")
    for each in list(client.batches.list()) + list(client.files.list()):
        checks.typed(each)
    checks.typed(client.files.delete(file.id))


def served(asked):
    checks = Checks()
    client = openai.OpenAI(base_url=asked["url"], api_key=asked["key"], max_retries=0)
    sync(client, checks)
    asyncio.run(concurrent(asked, checks))
    batches(client, checks)
    return {"faults": checks.faults, "checked": checks.checked}


answer(served)
