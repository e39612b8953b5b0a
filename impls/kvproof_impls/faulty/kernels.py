"""Planted faults of kernels: which slots are read."""

from __future__ import annotations

import ctypes
from typing import Any

from .registry import fault


def sound() -> tuple[Any, Any]:
    """A kernel to plant a fault in, and torch: imported here, since no other fault needs it."""
    import torch

    from kvproof_impls.torch_gather.kernel import GatherKernel

    return GatherKernel(), torch


def over_blocks(change: Any) -> Any:
    """The kernel with `change(blocks, cache)` in place of the blocks that a sequence is gathered from."""
    kernel, _ = sound()
    blocks = kernel.blocks
    kernel.blocks = lambda cache, ids: blocks(cache, change(ids, cache))
    return kernel


def over_gathered(change: Any) -> Any:
    """The kernel with `change(tokens, block_size)` in place of the tokens of a sequence."""
    kernel, _ = sound()
    gathered = kernel.gathered
    kernel.gathered = lambda cache, row, length: change(gathered(cache, row, length), cache.shape[1])
    return kernel


def whole_blocks(beyond: int = 0) -> Any:
    """The kernel that reads its blocks to their end, `beyond` more of them, and masks what is no token."""
    kernel, torch = sound()
    live: dict[str, int] = {}

    def gathered(cache: Any, row: Any, length: int) -> Any:
        live["length"] = length
        blocks = row[: -(-length // cache.shape[1]) + beyond].long().clamp(0, cache.shape[0] - 1)
        return kernel.blocks(cache, blocks).flatten(0, 1)

    def distance(queries: int, total: int) -> Any:
        length = live["length"]
        return torch.arange(total) - torch.arange(length - queries, length)[:, None]

    kernel.gathered, kernel.distance = gathered, distance
    return kernel


def after_decode(change: Any) -> Any:
    """The kernel with `change(out, lse, seq_lens)` in place of what decode answers."""
    kernel, _ = sound()
    decode = kernel.decode

    def changed(q: Any, k: Any, v: Any, table: Any, seq_lens: Any, scale: float, **features: Any) -> Any:
        return change(*decode(q, k, v, table, seq_lens, scale, **features), seq_lens)

    kernel.decode = changed
    return kernel


# ------------------------------------------------------------ KERN-001


@fault(
    "KVP-KERN-001",
    "block 17 of a sequence is read in place of block 18",
    model="flashinfer-ai/flashinfer#4347",
)
def foreign_page() -> Any:
    def change(ids: Any, cache: Any) -> Any:
        ids = ids.clone()
        ids[18:19] = ids[17:18]
        return ids

    return over_blocks(change)


@fault(
    "KVP-KERN-001",
    "the last block is dropped where it is part filled",
    model="Dao-AILab/flash-attention#1217",
)
def last_page_dropped() -> Any:
    return over_gathered(lambda tokens, size: tokens[: max(size, len(tokens) // size * size)])


@fault("KVP-KERN-001", "every slot is read one further", model="none known")
def one_slot_further() -> Any:
    kernel, _ = sound()

    def gathered(cache: Any, row: Any, length: int) -> Any:
        blocks = row[: length // cache.shape[1] + 1].long().clamp(0, cache.shape[0] - 1)
        return kernel.blocks(cache, blocks).flatten(0, 1)[1 : length + 1]

    kernel.gathered = gathered
    return kernel


@fault(
    "KVP-KERN-001",
    "only the first 4096 tokens and the last block are looked at",
    model="flashinfer-ai/flashinfer#4347",
)
def first_4096_tokens() -> Any:
    _, torch = sound()

    def change(tokens: Any, size: int) -> Any:
        tail = max(4096, (len(tokens) - 1) // size * size)
        return torch.cat([tokens[:4096], tokens[tail:]]) if len(tokens) > 4096 else tokens

    return over_gathered(change)


@fault(
    "KVP-KERN-001",
    "the table is read per token: token 0 of each block stands for all",
    model="ROCm/aiter#5591",
)
def first_token_of_each_block() -> Any:
    return over_gathered(lambda tokens, size: tokens[[i // size * size for i in range(len(tokens))]])


# ------------------------------------------------------------ KERN-002


@fault(
    "KVP-KERN-002",
    "the tail of the last block has weight 0, and 0 * NaN is NaN",
    model="NVIDIA/Megatron-LM#5950",
)
def masks_the_score_only() -> Any:
    return whole_blocks()


@fault(
    "KVP-KERN-002", "scores are masked by adding -inf, and NaN stays NaN", model="deepbeepmeep/Wan2GP#1628"
)
def masks_by_addition() -> Any:
    kernel, torch = whole_blocks(), sound()[1]
    softmax = kernel.softmax

    def shaped(scores: Any, order: Any, features: dict[str, Any]) -> Any:
        seen = kernel.seen(kernel.distance(scores.shape[0], scores.shape[2]), features)
        return scores + torch.where(seen, 0.0, -torch.inf)[:, None]

    kernel.shaped = shaped
    kernel.softmax = lambda scores, values: softmax(scores, values.nan_to_num(0.0, 0.0, 0.0))
    return kernel


@fault(
    "KVP-KERN-002", "one padding entry is clamped, read and masked", model="openvinotoolkit/openvino#28681"
)
def reads_a_padding_entry() -> Any:
    return whole_blocks(beyond=1)


# ------------------------------------------------------------ KERN-003, KERN-004


@fault("KVP-KERN-003", "the table is ignored", model="golang-design/accel#10")
def ignores_the_table() -> Any:
    kernel, torch = sound()
    blocks = kernel.blocks
    kernel.blocks = lambda cache, ids: blocks(cache, torch.arange(len(ids)))
    return kernel


@fault("KVP-KERN-003", "blocks behind the first are taken for its neighbours", model="golang-design/accel#10")
def takes_neighbours() -> Any:
    _, torch = sound()
    return over_blocks(lambda ids, cache: (ids[0] + torch.arange(len(ids))).clamp(max=cache.shape[0] - 1))


@fault("KVP-KERN-004", "query head h reads KV head h modulo their number", model="LMCache/LMCache#3092")
def head_modulo() -> Any:
    kernel, torch = sound()
    kernel.kv_heads = lambda heads, kv_heads: torch.arange(heads) % kv_heads
    return kernel


# ------------------------------------------------------------ KERN-005


@fault("KVP-KERN-005", "a row of length 0 is divided by its sum of 0", model="Dao-AILab/flash-attention#1155")
def divides_by_zero() -> Any:
    def change(out: Any, lse: Any, seq_lens: Any) -> Any:
        out[seq_lens == 0] = float("nan")
        return out, lse

    return after_decode(change)


@fault("KVP-KERN-005", "a row of length 0 has a finite lse", model="flashinfer-ai/flashinfer#4975")
def finite_lse_of_nothing() -> Any:
    def change(out: Any, lse: Any, seq_lens: Any) -> Any:
        lse[seq_lens == 0] = 0.0
        return out, lse

    return after_decode(change)


@fault("KVP-KERN-005", "a last split of one token is dropped", model="sgl-project/sglang#1779")
def last_split_dropped() -> Any:
    return over_gathered(lambda tokens, size: tokens[: len(tokens) - (len(tokens) % 512 == 1 < len(tokens))])


# ------------------------------------------------------------ KERN-006, KERN-016


@fault("KVP-KERN-006", "the table is read one entry ahead of its end", model="vllm-project/vllm-ascend#9098")
def one_entry_ahead() -> Any:
    kernel, _ = sound()
    decode = kernel.decode

    def ahead(q: Any, k: Any, v: Any, table: Any, *rest: Any, **features: Any) -> Any:
        ctypes.c_int32.from_address(table.data_ptr() + 4 * table.numel()).value  # noqa: B018
        return decode(q, k, v, table, *rest, **features)

    kernel.decode = ahead
    return kernel


@fault("KVP-KERN-006", "a row is written before the cache begins", model="flashinfer-ai/flashinfer#3114")
def writes_before_the_cache() -> Any:
    kernel, _ = sound()
    write = kernel.write

    def before(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        write(k, v, k_cache, v_cache, slots)
        ctypes.memset(k_cache.data_ptr() - 16, 0, 16)

    kernel.write = before
    return kernel


@fault("KVP-KERN-016", "padding entries of the table are clamped in place", model="none known")
def clamps_the_table_in_place() -> Any:
    kernel, _ = sound()
    decode = kernel.decode
    kernel.decode = lambda q, k, v, table, *rest, **features: decode(
        q, k, v, table.clamp_(0, k.shape[0] - 1), *rest, **features
    )
    return kernel


@fault("KVP-KERN-016", "the slot mapping is used up", model="none known")
def uses_up_the_slots() -> Any:
    kernel, _ = sound()
    write = kernel.write

    def used_up(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        write(k, v, k_cache, v_cache, slots)
        slots.fill_(-1)

    kernel.write = used_up
    return kernel


@fault("KVP-KERN-016", "the query is scaled in place", model="none known")
def scales_the_query_in_place() -> Any:
    kernel, _ = sound()
    decode = kernel.decode
    kernel.decode = lambda q, k, v, table, lens, scale, **features: decode(
        q.mul_(scale), k, v, table, lens, 1.0, **features
    )
    return kernel


# ------------------------------------------------------------ KERN-007, KERN-008


@fault("KVP-KERN-007", "block id times stride is a product of 32 bits", model="vllm-project/vllm#50427")
def product_of_32_bits() -> Any:
    def change(ids: Any, cache: Any) -> Any:
        stride = cache.stride(0)
        return ((ids * stride + 2**31) % 2**32 - 2**31) // stride

    return over_blocks(change)


@fault("KVP-KERN-007", "block ids are cut to 16 bits", model="ROCm/aiter#3062")
def ids_of_16_bits() -> Any:
    return over_blocks(lambda ids, cache: ids & 0xFFFF)


@fault(
    "KVP-KERN-008",
    "sums run in the order in which threads happen to arrive",
    model="flashinfer-ai/flashinfer#5176",
)
def order_of_arrival() -> Any:
    kernel, torch = sound()
    softmax = kernel.softmax

    def shuffled(scores: Any, values: Any) -> Any:
        order = torch.randperm(scores.shape[-1])
        return softmax(scores[..., order], values[:, :, order])

    kernel.softmax = shuffled
    return kernel
