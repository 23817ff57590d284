#!/usr/bin/env python3
"""Load for `tailgraph serve`: so many streams at once, each a chain of requests, timed as a client sees them.

    tailgraph serve -m random:lfm2-8b-a1b --max-seqs 256 &
    profiles/serve.py --streams 256 --requests 1024

Prints one line of JSON: tokens a second, and p50 and p99 of the time to the first token (TTFT) and between two chunks
that carry tokens (ITL), in ms. Needs Python alone. Streams are shared out to processes, so that the client is not what is
measured: its processor time stands beside the result.
"""
import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from urllib.parse import urlsplit


class Stream(asyncio.Protocol):
    """One connection that sends request after request and notes when chunks of their answers arrive."""

    def __init__(self, prompts, args, done):
        self.prompts, self.args, self.done = prompts, args, done
        self.first, self.between, self.tokens = [], [], 0

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        prompt = next(self.prompts, None)
        if prompt is None:
            self.transport.close()
            return
        body = {"model": self.args.model, "prompt": prompt, "max_tokens": self.args.gen_len, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: tailgraph\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sent, self.last, self.received = time.perf_counter(), None, b""
        self.transport.write(head.encode() + body)

    def data_received(self, data):
        now = time.perf_counter()
        if not self.received and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {data[:300]!r}")
        self.received = (self.received + data)[-4096:]
        if b'"choices":[{' in data:
            if self.last is None:
                self.first.append(now - self.sent)
            else:
                self.between.append(now - self.last)
            self.last = now
        if b"data: [DONE]" in self.received and self.received.endswith(b"0\r\n\r\n"):
            usage = self.received.rpartition(b'"usage":')[2]
            usage = json.JSONDecoder().raw_decode(usage.decode())[0]
            if usage["completion_tokens"] != self.args.gen_len:
                raise RuntimeError(f"an answer has {usage['completion_tokens']} tokens, not {self.args.gen_len}")
            self.tokens += usage["completion_tokens"]
            self.send()

    def connection_lost(self, error):
        self.done.set_result(error)


def client(args, part, processes):
    """Sends one process's part of the requests over its part of the connections, and returns what was measured."""
    streams, requests = (of * (part + 1) // processes - of * part // processes for of in (args.streams, args.requests))
    rng = random.Random()
    prompts = iter([rng.choices(range(8, 264), k=args.prompt_len) for _ in range(requests)])
    address = urlsplit(args.url)

    async def all_streams():
        loop = asyncio.get_running_loop()
        ends = [loop.create_future() for _ in range(streams)]
        made = [loop.create_connection(lambda end=end: Stream(prompts, args, end), address.hostname, address.port) for end in ends]
        made = [stream for _, stream in await asyncio.gather(*made)]
        for error in await asyncio.gather(*ends):
            if error:
                raise error
        return made

    start = time.perf_counter()
    made = asyncio.run(all_streams())
    end = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    first = [t for stream in made for t in stream.first]
    between = [t for stream in made for t in stream.between]
    return start, end, sum(stream.tokens for stream in made), first, between, used.ru_utime + used.ru_stime


def busy():
    while True:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="random:lfm2-8b-a1b")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=1024)
    parser.add_argument("--gen-len", type=int, default=256)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--cpu-load", type=int, default=0, help="threads that keep the host busy meanwhile")
    args = parser.parse_args()
    for _ in range(args.cpu_load):
        multiprocessing.Process(target=busy, daemon=True).start()
    processes = min(args.processes, args.streams)
    with ProcessPoolExecutor(processes) as pool:
        results = list(pool.map(client, [args] * processes, range(processes), [processes] * processes))
    seconds = max(r[1] for r in results) - min(r[0] for r in results)
    row = {"streams": args.streams, "requests": args.requests, "prompt_len": args.prompt_len, "gen_len": args.gen_len, "cpu_load": args.cpu_load}
    row |= {"seconds": round(seconds, 3), "tokens_per_s": round(sum(r[2] for r in results) / seconds, 1)}
    for name, place in (("ttft", 3), ("itl", 4)):
        times = sorted(t for r in results for t in r[place])
        row |= {f"{p}_{name}_ms": round(times[min(len(times) - 1, int(len(times) * q))] * 1e3, 3) for p, q in (("p50", 0.5), ("p99", 0.99))}
    print(json.dumps(row | {"client_cpu_s": round(sum(r[5] for r in results), 2)}))


if __name__ == "__main__":
    main()
