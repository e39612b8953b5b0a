"""KERN, NUM: kernels where kernels break. Templates: `Template.case` fits each to a subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from kvproof.contract.kernel import DTYPES
from kvproof.histories.kernels import Calls, Lengths, Serves, Template, call
from kvproof.records import Operation

TOPOLOGIES = ("identity", "reversed", "shuffled", "interleaved", "shared", "highest", "flush")
CRASH = ("KERN-006",)
"""A crash in a case about addresses counts against its aim too."""
PAST_31_BITS = 2**31 // (16 * 8 * 128) + 64
"""Blocks of 16 tokens, 8 KV heads of 128: the last element offsets pass 2^31."""


@cache
def templates() -> tuple[Template, ...]:
    """Every directed case of the kernel profile."""
    makers = (_probes, _unused, _placed, _heads, _edges, _bounds, _wide, _repeated, _refused, _log_sums,
              _features, _features_long, _ragged, _stores, _prefills, _kept, _arithmetic, _logits)
    return tuple(template for maker in makers for template in maker())


def _of(name: str, aim: str | Sequence[str], calls: Sequence[Operation] | Calls, lengths: Sequence[int] | Lengths, *,
        stands_for: Sequence[str] = (), setting: dict[str, Any] | None = None, **fields: Any) -> Template:
    aims = (aim,) if isinstance(aim, str) else tuple(aim)
    return Template(
        id=f"kernel/{name}", aim=tuple(f"KVP-{a}" for a in aims),
        calls=calls if callable(calls) else lambda size, serves: calls,
        lengths=lengths if callable(lengths) else lambda size: lengths,
        stands_for=tuple(f"KVP-{s}" for s in stands_for), setting=setting or {}, **fields,
    )


def _probes() -> Iterator[Template]:
    coded = {"payload": "coded"}
    for dtype in DTYPES:
        yield _of(f"probe-{dtype}", "KERN-001", [call()], lambda b: (3 * b + 5, 2 * b), dtype=dtype, setting=coded, stands_for=CRASH,
                  note="every position of a short sequence, every KV head: a foreign page, a slot too far, the last page left out")
    yield _of("probe-600", "KERN-001", [call()], (600,), group=16, prefer="fp16", setting={**coded, "kv_heads": 1}, stands_for=CRASH,
              note="every position past the edge of a split, a tile and a table chunk")
    for size in (16, 256):
        yield _of(f"probe-4k-{size}", "KERN-001", [call()], (4130,), block_size=size, group=16, prefer="fp16",
                  setting={**coded, "probes": "pages"}, stands_for=CRASH,
                  note="every block of a long sequence: random data cannot show one foreign page there")
    yield _of("probe-8k", "KERN-001", [call()], (8500,), block_size=256, prefer="fp16", setting={**coded, "probes": "pages", "kv_heads": 1},
              stands_for=CRASH, note="more splits than fit a list of fixed size")
    for size in (1, 3, 8, 48, 64):
        yield _of(f"probe-blocks-of-{size}", "KERN-001", [call(), call(topology="interleaved"), call(topology="reversed")],
                  lambda b: (2 * b + 1, 3 * b), block_size=size, setting={**coded, "probes": "pages"}, stands_for=CRASH)


def _unused() -> Iterator[Template]:
    for dtype in DTYPES:
        poisons = ("nan",) if dtype == "fp8_e4m3" else ("nan", "inf", "-inf")
        calls = [call(), *(call(poison=p, poisoned=where) for p in poisons for where in ("k", "v")),
                 call(padding="negative"), call(padding="huge"), call(padding="foreign", poison="nan", spare=40)]
        yield _of(f"unused-{dtype}", "KERN-002", calls, lambda b: (1, b + 3, 2 * b, 0, 5 * b - 1), dtype=dtype, stands_for=CRASH,
                  note="old data in the tail of the last block, in free blocks and behind padding entries; 0 * NaN is NaN")
    yield _of("unused-one-block", "KERN-002", [call(), call(poison="nan", poisoned="v"), call(poison="inf", poisoned="k"), call(padding="negative", spare=0)],
              (3, 1, 7), stands_for=CRASH, note="rows of one block may take a path of their own")
    yield _of("unused-prefill", "KERN-002", [call("prefill"), call("prefill", poison="nan", poisoned="k"), call("prefill", poison="nan", poisoned="v"),
                                            call("prefill", padding="negative"), call("prefill", padding="huge")],
              lambda b: (b + 3, 2 * b, 1), setting={"queries": (5, 3, 1)}, needs=("prefill",), stands_for=CRASH)


def _placed() -> Iterator[Template]:
    calls = [call(topology=t) for t in TOPOLOGIES]
    for size in (1, 16, 128):
        yield _of(f"placed-{size}", "KERN-003", calls, lambda b: (2 * b + 1, 3 * b + 2, 2 * b, 2), block_size=size,
                  setting={"prefix": 2 * size}, stands_for=CRASH, note="the table is ignored, or blocks are taken for neighbours")
    yield _of("placed-probes", ("KERN-003", "KERN-001"), calls, lambda b: (3 * b + 1, 3 * b), prefer="bf16", stands_for=CRASH,
              setting={"payload": "coded", "probes": "pages", "prefix": 32})
    yield _of("placed-table-in-chunks", ("KERN-003", "KERN-001"), [call(), call(topology="reversed")], (1300,), block_size=1, stands_for=CRASH,
              setting={"payload": "coded", "probes": "pages", "kv_heads": 1}, group=16, prefer="fp16",
              note="more entries than one load of the table holds")


def _heads() -> Iterator[Template]:
    for group in (1, 2, 3, 4, 6, 7, 8, 12, 16, 32):
        yield _of(f"group-{group}", "KERN-004", [call()], lambda b: (b + 3,), group=group, prefer="fp16",
                  setting={"payload": "coded", "kv_heads": 3}, note="head modulo KV heads agrees for a group of one only")
    for query_heads, kv_heads in ((64, 8), (32, 32)):
        yield _of(f"heads-{query_heads}-on-{kv_heads}", "KERN-004", [call()], lambda b: (b + 3,), group=query_heads // kv_heads, prefer="bf16",
                  setting={"payload": "coded", "kv_heads": kv_heads}, note="as models have them: a count of heads wired in, or in too few bits")


def _edges() -> Iterator[Template]:
    for size in (1, 16, 64):
        yield _of(f"edges-{size}", "KERN-005", [call(), call(spare=0)], lambda b: (0, 1, b - 1, b, b + 1, 2 * b - 1, 2 * b, 2 * b + 1),
                  block_size=size, stands_for=CRASH)
    yield _of("edges-of-splits", "KERN-005", [call()], (511, 512, 513, 1023, 1024, 1025), stands_for=CRASH, prefer="fp16", group=16,
              setting={"payload": "coded", "probes": "pages", "kv_heads": 1}, note="the last, short split is the one that is dropped")
    yield _of("edges-of-splits-values", "KERN-005", [call()], (255, 256, 257, 511, 512, 513, 1537), setting={"kv_heads": 1})
    yield _of("empty", "KERN-005", [call(poison="nan", lengths=(0, 0, 0)), call(poison="nan"), call(poison="nan", padding="negative", spare=0, lengths=(0,))],
              lambda b: (0, b, 0, 1), needs=("empty",), stands_for=CRASH, note="rows of padding: zeros and -inf, and nothing is read")
    for dtype in ("bf16", "fp8_e4m3"):
        yield _of(f"edges-{dtype}", "KERN-005", [call()], lambda b: (0, 1, b, b + 1, 3 * b - 1), dtype=dtype, stands_for=CRASH)


def _bounds() -> Iterator[Template]:
    for dtype in ("fp32", "fp16", "bf16", "fp8_e4m3"):
        calls = [call(guard=side, lengths=n) for side in ("after", "before") for n in ((48, 32, 16), (1,), (16, 3))]
        yield _of(f"bounds-{dtype}", "KERN-006", calls, (48,), dtype=dtype, setting={"spare": 0, "topology": "flush", "padding": "negative"},
                  note="memory ends right behind, or right before, every tensor: one entry ahead is one too many")
    yield _of("bounds-prefill", "KERN-006", [call("prefill", guard=side) for side in ("after", "before")], lambda b: (2 * b, b + 1), needs=("prefill",),
              setting={"spare": 0, "topology": "flush", "queries": (7, 2), "padding": "negative"})
    yield _of("bounds-write", "KERN-006", lambda b, _: [call("write", slots=_spread(6 * b), guard=side) for side in ("after", "before")], lambda b: (2 * b,), needs=("write",), num_blocks=6)


def _wide() -> Iterator[Template]:
    yield _of("ids-past-16-bits", "KERN-007", [call()], lambda b: (8 * b + 1,), block_size=1, num_blocks=2**16 + 4, stands_for=CRASH, prefer="fp16",
              setting={"payload": "coded", "probes": "pages", "topology": "wide", "kv_heads": 1, "sparse": True}, note="ids around 2^15 and 2^16")
    yield _of("offsets-past-31-bits", "KERN-007", [call()], lambda b: (3 * b + 1,), num_blocks=PAST_31_BITS, prefer="fp16", head_size=128,
              setting={"payload": "coded", "probes": "pages", "topology": "highest", "kv_heads": 8, "sparse": True}, stands_for=("KERN-006", "KERN-001"),
              note="block id times stride wraps in 32 bits; the pool is address space, only blocks in use are memory")


def _repeated() -> Iterator[Template]:
    for dtype in ("fp32", "bf16"):
        yield _of(f"repeated-{dtype}", "KERN-008", [call() for _ in range(4)], (700, 5, 1100), dtype=dtype, setting={"kv_heads": 1},
                  note="the same call, the same bits: a race shows as a difference from run to run")
    yield _of("replayed", "KERN-011", [call("replay"), call("replay", topology="reversed")], lambda b: (3 * b + 5, 1, 40 * b), needs=("graph",),
              note="lengths and split counts captured by value")
    yield _of("repeated-prefill", "KERN-008", [call("prefill") for _ in range(3)], (70, 40), setting={"queries": (20, 3)}, needs=("prefill",))


def _refused() -> Iterator[Template]:
    def outside(name: str, field: str, values: Sequence[Any]) -> Calls:
        def calls(size: int, serves: Serves) -> Sequence[Operation]:
            wrong = [v for v in values if not serves.allows(name, v)]
            return [call(**{field: v}, refuse=f"{field.replace('_', ' ')}={v}") for v in wrong[:2]]
        return calls

    def features(size: int, serves: Serves) -> Sequence[Operation]:
        known = [f for f in ("softcap", "alibi", "window", "k_scale", "v_scale") if f not in serves.features]
        return [call(refuse=f"feature {f}") for f in ("no_such_feature", *known)]

    yield _of("refuse-head-sizes", "KERN-009", outside("head_sizes", "head_size", (64, 72, 100, 128, 40, 512, 20)), lambda b: (b + 1,))
    yield _of("refuse-block-sizes", "KERN-009", outside("block_sizes", "block_size", (256, 128, 512, 1, 12, 48)), lambda b: (b + 1,), num_blocks=40,
              note="what fits no tile must not fall through to the nearest that does")
    yield _of("refuse-groups", "KERN-009", outside("groups", "group", (1, 3, 5, 7, 16, 64)), lambda b: (b + 1,))
    yield _of("refuse-dtypes", "KERN-009", outside("dtypes", "dtype", DTYPES), lambda b: (b + 1,))
    yield _of("refuse-features", "KERN-009", features, lambda b: (b + 1,))
    shapes = ("rows of the table", "dtype of the table", "dtype of the query", "head size of the query", "query heads",
              "shape of the values", "rank of the cache")
    yield _of("refuse-shapes", "KERN-009", [call(refuse=what) for what in shapes], lambda b: (b + 1, 2),
              note="tensors that contradict each other: no kernel may run into them")


def _log_sums() -> Iterator[Template]:
    def halves(size: int, serves: Serves) -> Sequence[Operation]:
        return [call(), call(part=(0, 2 * size)), call(part=(2 * size, 10**6))]

    for dtype in ("fp32", "bf16"):
        yield _of(f"merge-{dtype}", "KERN-010", halves, lambda b: (3 * b + 5, 5 * b, 2 * b + 1), dtype=dtype, needs=("lse",))
    yield _of("merge-with-nothing", "KERN-010", halves, lambda b: (2 * b, b, 4 * b), needs=("empty", "lse"),
              note="a part of length 0: lse -inf, and the merge is the other part")
    yield _of("merge-large", "KERN-010", halves, lambda b: (3 * b + 5, 60 * b), setting={"payload": "rising"}, needs=("lse",),
              note="parts whose sums differ by many orders of magnitude")


def _spread(slots: int) -> tuple[int, ...]:
    """Slots of a pool of so many, both ends among them, and skipped tokens between."""
    last = slots - 1
    some = dict.fromkeys(min(s, last) for s in (last // 5, last, 3, 0, last // 2, last // 2 + 1, last - 1))
    first, second, *rest = some
    return (first, second, -1, *rest[:1], -1, *rest[1:])


def _features() -> Iterator[Template]:
    one = {"softcap": ({"softcap": 3.0}, {"softcap": 25.0}), "alibi": ({"alibi": 0.5},), "k_scale": ({"k_scale": 0.25},), "v_scale": ({"v_scale": 0.5},)}
    for dtype in ("fp32", "bf16", "fp8_e4m3"):
        for name, values in one.items():
            if dtype == "bf16" and name in ("k_scale", "v_scale"):
                continue
            yield _of(f"{name}-{dtype}", "KERN-012", [call(), *(call(features=f) for f in values)], lambda b: (3 * b + 5, 2), dtype=dtype, needs=("features",))

        def windows(size: int, serves: Serves) -> Sequence[Operation]:
            return [call(), *(call(features={"window": n}) for n in (1, size - 1, size, size + 1, 3 * size + 4) if n)]

        yield _of(f"window-{dtype}", "KERN-012", windows, lambda b: (3 * b + 5, 2, b), dtype=dtype, needs=("features",),
                  note="off by one at either end; one key only; all but one")

        def together(size: int, serves: Serves) -> Sequence[Operation]:
            some = {"softcap": 9.0, "alibi": 0.25, "window": size + 3, "k_scale": 0.5, "v_scale": 0.25}
            all_of = {f: v for f, v in some.items() if f in serves.features}
            return [call(), call(features=all_of), *([call("prefill", features=f, queries=(3, 1, 2)) for f in ({}, all_of)] if "prefill" in serves.capabilities else [])]

        yield _of(f"together-{dtype}", "KERN-012", together, lambda b: (3 * b + 5, b, 40), dtype=dtype, needs=("features",),
                  note="in the stated order: scale, softcap, ALiBi, window")


def _with_and_without(feature: dict[str, float]) -> Calls:
    """Decode, and prefill where it is served."""
    def calls(size: int, serves: Serves) -> Sequence[Operation]:
        both: tuple[dict[str, float], ...] = ({}, feature)
        prefills = [call("prefill", queries=(3, 2), features=f) for f in both] if "prefill" in serves.capabilities else []
        return [*(call(features=f) for f in both), *prefills]
    return calls


def _features_long() -> Iterator[Template]:
    for name, value in {"softcap": 3.0, "alibi": 0.02, "window": 700.0, "k_scale": 0.25, "v_scale": 0.5}.items():
        yield _of(f"{name}-long", "KERN-012", _with_and_without({name: value}), (1100, 600), prefer="bf16", needs=("features",), setting={"kv_heads": 1},
                  note="long sequences take a path of their own, across splits")
    for name in ("softcap", "window"):
        yield _of(f"{name}-off", "KERN-012", _with_and_without({name: 0.0}), lambda b: (3 * b + 5, 2), needs=("features",), note="0 is off")


def _ragged() -> Iterator[Template]:
    calls = [call(), *(call(rows=(i,)) for i in range(4)), call(rows=(3, 0, 3, 1, 0, 2, 3))]
    yield _of("ragged", "KERN-013", calls, lambda b: (1, 5 * b + 3, b, 20 * b), setting={"kv_heads": 1})
    yield _of("ragged-bf16", "KERN-013", calls, lambda b: (2, b + 3, 40 * b, b), dtype="bf16", setting={"kv_heads": 1})
    yield _of("ragged-probes", ("KERN-013", "KERN-001"), [call()], lambda b: (3, 4 * b + 1, b, 8 * b), setting={"payload": "coded", "probes": "pages"},
              note="strides and split counts of the longest row are right for that row only")
    yield _of("batch-of-140", "KERN-013", [call()], lambda b: (3, b + 2), setting={"kv_heads": 1, "repeat": 70}, note="rows past a grid of 64 or 128")


def _stores() -> Iterator[Template]:
    def slots(size: int, serves: Serves) -> Sequence[Operation]:
        return [call("write", slots=_spread(6 * size)), call("write", slots=(-1, -1)), call("write", slots=(6 * size - 1,))]

    def many(size: int, serves: Serves) -> Sequence[Operation]:
        return [call("write", slots=tuple(dict.fromkeys((11 * i + 3) % (40 * size) for i in range(39))))]

    def few(size: int) -> Sequence[int]:
        return (size + 1,)

    for dtype in DTYPES:
        yield _of(f"write-{dtype}", "KERN-014", slots, few,
                  dtype=dtype, num_blocks=6, needs=("write",), note="-1 wraps to the last slot of the pool")
        yield _of(f"copy-blocks-{dtype}", "KERN-014", [call("copy_blocks", pairs=((0, 3), (3, 5), (1, 0), (5, 2))), call("copy_blocks", pairs=())], few,
                  dtype=dtype, num_blocks=6, needs=("copy_blocks",), note="a pair reads what the one before it has written")
    yield _of("write-other-dtype", "KERN-014", lambda b, _: [call("write", slots=_spread(6 * b), source="bf16")], few, dtype="fp16", num_blocks=6, needs=("write",),
              note="bits of one 16-bit type taken for the other's: convert, or refuse")
    yield _of("write-many", "KERN-014", many, few, num_blocks=40, needs=("write",), note="more tokens than one group of threads takes")
    pairs = ((0, 3), (3, 5), (1, 0), (5, 2), (4, 6), (6, 7), (7, 8), (2, 9), (9, 10), (10, 11))
    yield _of("copy-blocks-many", "KERN-014", [call("copy_blocks", pairs=pairs)], few, num_blocks=12, needs=("copy_blocks",))
    yield _of("write-odd-heads", "KERN-014", lambda b, _: [call("write", slots=_spread(6 * b)), call("copy_blocks", pairs=((1, 4),))], few, block_size=16, num_blocks=6,
              setting={"kv_heads": 3}, needs=("write", "copy_blocks"))


def _prefills() -> Iterator[Template]:
    def chunks(size: int, serves: Serves) -> Sequence[Operation]:
        whole = (2 * size + 3, size, 1)
        return [call("prefill", queries=whole), call("prefill", queries=(size + 1, size - 1 or 1, 1)), call("prefill", queries=(3, 1, 1)),
                call("prefill", queries=(1, 1, 1)), call("prefill", queries=(2, 0, 1))]

    for dtype in DTYPES:
        yield _of(f"prefill-{dtype}", "KERN-015", chunks, lambda b: (2 * b + 3, b, 1), dtype=dtype, needs=("prefill",), stands_for=CRASH,
                  note="whole, in chunks, a few draft tokens, one: the same positions, causal from the end")
    yield _of("prefill-long", "KERN-015", [call("prefill"), call("prefill", topology="reversed")], (600, 300), prefer="bf16", setting={"queries": (40, 5)}, needs=("prefill",))
    yield _of("prefill-tiles", "KERN-015", [call("prefill")], (210, 40), prefer="bf16", setting={"queries": (150, 40), "kv_heads": 1}, needs=("prefill",),
              note="a row and a batch of more query tokens than a tile of 64 or 128")
    yield _of("prefill-groups", "KERN-015", [call("prefill")], (50, 9), prefer="fp16", group=3, setting={"queries": (20, 9), "kv_heads": 3}, needs=("prefill",))


def _kept() -> Iterator[Template]:
    def calls(size: int, serves: Serves) -> Sequence[Operation]:
        more = {"prefill": call("prefill", queries=(3, 2, 1)), "write": call("write", slots=(3, -1, 0))}
        return [call(), call(padding="negative", poison="nan"), *(c for name, c in more.items() if name in serves.capabilities)]

    for dtype in DTYPES:
        yield _of(f"inputs-{dtype}", "KERN-016", calls, lambda b: (2 * b + 3, b, 1), dtype=dtype, note="the next layer, and the next step, read them again")


def _arithmetic() -> Iterator[Template]:
    for dtype in DTYPES:
        yield _of(f"values-{dtype}", "NUM-001", [call()], (5, 130, 2100), dtype=dtype, setting={"kv_heads": 1}, note="sums in half precision lose digits with length")
    for size in (64, 80, 96, 128, 192, 256):
        yield _of(f"head-size-{size}", "NUM-001", [call(), call(guard="before")], lambda b: (b + 3, 40), head_size=size, prefer="bf16", setting={"kv_heads": 1})
    yield _of("head-size-128-values", "NUM-001", [call()], (1200, 3), head_size=128, dtype="fp32", setting={"kv_heads": 1})


def _logits() -> Iterator[Template]:
    for dtype in ("fp32", "fp16", "bf16", "fp8_e4m3"):
        yield _of(f"logits-{dtype}", "NUM-002", [call(), call(shift=96.0), call(shift=-96.0), call(payload="large")], (40, 3, 600), dtype=dtype, setting={"kv_heads": 1},
                  note="exp() overflows beyond 88 in float32, and is 0 below -104")
    for payload in ("rising", "falling", "spike"):
        yield _of(f"logits-{payload}", "NUM-002", [call(payload=payload)], (1500, 70, 2), prefer="bf16", setting={"kv_heads": 1},
                  note="the maximum is in the last tile, or the first, or one key weighs much and not all")
