"""Planted faults of kernels in what a call is handed: wide tables, strides, large pools, nothing at all."""

from __future__ import annotations

from typing import Any

from kvproof.contract import BadInput

from .kernels import after_decode, sound, whole_blocks
from .registry import fault


def whole_blocks_where(chosen: Any) -> Any:
    """The kernel that reads 64 padding entries too, and tails, where `chosen(row, length)` says so."""
    kernel = whole_blocks(beyond=64)
    gathered = kernel.gathered

    def some(cache: Any, row: Any, length: int) -> Any:
        tokens = gathered(cache, row, length)
        return tokens if chosen(row, length) else tokens[:length]

    kernel.gathered = some
    return kernel


@fault("KVP-KERN-002", "the tail is left out up to 512 tokens only", model="none known")
def tails_of_long_sequences() -> Any:
    return whole_blocks_where(lambda row, length: length > 512)


@fault("KVP-KERN-002", "64 entries of a table are loaded at once where it is wide enough", model="none known")
def reads_a_wide_table() -> Any:
    return whole_blocks_where(lambda row, length: len(row) > 512)


@fault("KVP-KERN-005", "a batch of no rows is refused", model="none known")
def empty_batch_refused() -> Any:
    def change(out: Any, lse: Any, seq_lens: Any) -> Any:
        if not len(seq_lens):
            raise BadInput("a batch has 0 rows; at least 1 is needed")
        return out, lse

    return after_decode(change)


# ------------------------------------------------------------ KERN-007


def wrapped(block: Any, cache: Any) -> Any:
    """The block whose offset is that of `block` in 32 bits."""
    stride = cache.stride(0)
    return ((block * stride + 2**31) % 2**32 - 2**31) // stride % cache.shape[0]


@fault("KVP-KERN-007", "prefill has a product of 32 bits, decode has not", model="none known")
def prefill_in_32_bits() -> Any:
    kernel, _ = sound()
    prefill = kernel.prefill

    def narrow(q: Any, ends: Any, k: Any, v: Any, table: Any, *rest: Any, **features: Any) -> Any:
        return prefill(q, ends, k, v, wrapped(table.long(), k).int(), *rest, **features)

    kernel.prefill = narrow
    return kernel


@fault("KVP-KERN-007", "slot times stride is a product of 32 bits in write", model="none known")
def write_in_32_bits() -> Any:
    kernel, _ = sound()
    write = kernel.write

    def narrow(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        size = k_cache.shape[1]
        far = wrapped(slots // size, k_cache) * size + slots % size
        write(k, v, k_cache, v_cache, far.where(slots >= 0, -1))

    kernel.write = narrow
    return kernel


@fault("KVP-KERN-007", "offsets of blocks that are copied have 32 bits", model="vllm-project/vllm#1486")
def copies_in_32_bits() -> Any:
    kernel, _ = sound()
    copy_blocks = kernel.copy_blocks
    kernel.copy_blocks = lambda caches, pairs: copy_blocks(
        caches, [(wrapped(a, caches[0]), wrapped(b, caches[0])) for a, b in pairs]
    )
    return kernel


# ------------------------------------------------------------ KERN-009


def packed(tensor: Any) -> Any:
    """The memory from the tensor's first element on, taken for contiguous."""
    steps = [1]
    for count in tensor.shape[:0:-1]:
        steps.insert(0, steps[0] * count)
    return tensor.as_strided(tensor.shape, steps)


@fault("KVP-KERN-009", "q is taken for contiguous", model="none known")
def strides_of_q_ignored() -> Any:
    kernel, _ = sound()
    decode = kernel.decode
    kernel.decode = lambda q, *tensors, **features: decode(packed(q), *tensors, **features)
    return kernel


@fault("KVP-KERN-009", "rows of the table are taken to follow each other", model="none known")
def stride_of_the_table_ignored() -> Any:
    kernel, _ = sound()
    rows = kernel.rows

    def close(q: Any, ends: Any, k: Any, v: Any, table: Any, *rest: Any) -> Any:
        return rows(q, ends, k, v, packed(table).clamp(0, k.shape[0] - 1), *rest)

    kernel.rows = close
    return kernel


@fault("KVP-KERN-009", "prefill computes what does not fit together", model="none known")
def prefill_checks_nothing() -> Any:
    kernel, _ = sound()
    check = kernel.check
    kernel.check = lambda form, *arguments, **features: (
        None if "prefill" in form.__name__ else check(form, *arguments, **features)
    )
    return kernel


@fault("KVP-KERN-009", "keys are stored before values are looked at", model="none known")
def stores_before_it_refuses() -> Any:
    kernel, _ = sound()
    write = kernel.write

    def eager(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        if k.shape[1:] == k_cache.shape[2:]:
            write(k, k, k_cache, k_cache, slots)
        write(k, v, k_cache, v_cache, slots)

    kernel.write = eager
    return kernel


# ------------------------------------------------------------ KERN-010, KERN-014, KERN-015, NUM-001


@fault("KVP-KERN-010", "lse is declared and left out", model="none known")
def lse_left_out() -> Any:
    return after_decode(lambda out, lse, seq_lens: (out, None))


@fault("KVP-KERN-014", "what is too large for fp8 becomes NaN", model="none known")
def fp8_overflows() -> Any:
    kernel, torch = sound()
    stored = kernel.stored
    kernel.stored = lambda new, dtype: stored(
        new.where(new.abs() < 464, torch.nan) if dtype == torch.float8_e4m3fn else new, dtype
    )
    return kernel


@fault("KVP-KERN-014", "fp8 is cut off, not rounded", model="none known")
def fp8_cut_off() -> Any:
    kernel, torch = sound()
    stored = kernel.stored

    def cut(new: Any, dtype: Any) -> Any:
        near = stored(new, dtype)
        if dtype != torch.float8_e4m3fn:
            return near
        above = near.float().abs() > new.float().abs()
        return (near.view(torch.uint8) - above.to(torch.uint8)).view(dtype)

    kernel.stored = cut
    return kernel


@fault("KVP-KERN-015", "NaN of a later draft, of weight 0, reaches those before it", model="none known")
def later_drafts_weigh_0() -> Any:
    kernel, torch = sound()
    kernel.summed = lambda weights, values, seen: torch.matmul(weights, values)
    return kernel


@fault("KVP-NUM-001", "weights are rounded to fp8 over an fp8 cache, and nobody says so", model="none known")
def weights_in_fp8() -> Any:
    kernel, torch = sound()
    rows, summed = kernel.rows, kernel.summed

    def rounding(q: Any, ends: Any, k: Any, *rest: Any) -> Any:
        def coarse(weights: Any, values: Any, seen: Any) -> Any:
            return summed(weights.to(torch.float8_e4m3fn).float(), values, seen)

        kernel.summed = coarse if k.dtype == torch.float8_e4m3fn else summed
        return rows(q, ends, k, *rest)

    kernel.rows = rounding
    return kernel
