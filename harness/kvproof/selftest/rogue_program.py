"""A program that speaks the protocol, and does something bad at the second append: `rogue_program.py MODE`.

It imports nothing of ours, so that it starts at once. Right with the mode `bare`.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

MODE = sys.argv[1]


class Bare:
    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.pool = size, list(range(blocks))
        self.tables: dict[Any, list[int]] = {}
        self.lengths: dict[Any, int] = {}

    def take(self, count: int) -> list[int]:
        if count > len(self.pool):
            raise LookupError("OutOfBlocks")
        return [self.pool.pop() for _ in range(count)]

    def add(self, seq: Any, tokens: list[Any]) -> int:
        if type(seq) is not int or seq < 0 or seq in self.tables or not tokens:
            raise LookupError("BadInput")
        self.tables[seq], self.lengths[seq] = self.take(-(-len(tokens) // self.size)), len(tokens)
        return 0

    def append(self, seq: Any, tokens: list[Any]) -> list[int]:
        length = self.lengths[seq] + len(tokens)
        self.tables[seq] += self.take(-(-length // self.size) - len(self.tables[seq]))
        self.lengths[seq] = length
        return []

    def commit(self, seq: Any, computed: int) -> None:
        pass

    def free(self, seq: Any) -> None:
        self.pool += self.tables.pop(seq)
        del self.lengths[seq]

    def table(self, seq: Any) -> list[int]:
        return self.tables[seq]

    def free_blocks(self) -> int:
        return len(self.pool)


def answer(manager: Bare, message: dict[str, Any]) -> dict[str, Any]:
    op = message.pop("op")
    try:
        if op not in ("add", "append", "commit", "free", "table", "free_blocks"):
            return {"err": "Unsupported", "msg": op}
        return {"ok": getattr(manager, op)(**message)}
    except KeyError:
        return {"err": "UnknownSequence"}
    except LookupError as error:
        return {"err": str(error)}


def bad(said: str) -> str:
    """The second append; what is returned is written."""
    if MODE == "exits":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(7)
    if MODE == "hangs":
        child = subprocess.Popen(["sleep", "600"])
        with open(sys.argv[2], "a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        time.sleep(600)
    if MODE == "closes":
        os.close(1)
        time.sleep(600)
    if MODE == "floods":
        while True:
            os.write(1, b"x" * 65536)
    if MODE == "floods_stderr":
        while True:
            os.write(2, b"y" * 65536)
    return {
        "garbage": "warning: \u00fc no JSON",
        "twice": said + "\n" + said,
        "wrong_type": '{"ok": "seven"}',
        "wrong_error": '{"err": "NoSuchError"}',
        "internal": '{"err": "Internal", "msg": "a fault of its own"}',
        "empty": "",
    }.get(MODE, said)


def main() -> None:
    manager, appends, said = Bare(1, 1), 0, dict[str, Any]()
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "open":
            if message["block_size"] < 1:
                said = {"err": "BadInput", "msg": "block_size"}
            else:
                manager, appends = Bare(message["num_blocks"], message["block_size"]), 0
                names = {"names_codec": ["codec"], "second": ["multi"]}.get(MODE, [])
                said = {"ok": {"capabilities": names}}
        elif message["op"] == "run" and MODE == "clock":
            results = [answer(manager, one) for one in message["ops"]]
            said = {"ok": {"results": results, "ns": 2_000_000_000}}
        else:
            appends += message["op"] == "append"
            said = answer(manager, dict(message))
        text = json.dumps(said)
        if appends == 2 and message["op"] == "append":
            text = bad(text)
        print(text, flush=True)


main()
