"""How many blocks fit into memory (chapter 3.2.1, with what it leaves out: layers and KV heads).

Arithmetic is exact: 24 GiB * 0.8 over 262,144 bytes a block is 78,643, an integer.
"""

from __future__ import annotations

from fractions import Fraction

from kvproof.contract import BadInput, Refused

from .inputs import ID_LIMIT, whole


def block_bytes(block_size: int, layers: int, kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in every layer, on one rank."""
    return 2 * layers * block_size * kv_heads * head_dim * dtype_bytes


def blocks_for(memory: int, share: float, reserved: int, bytes_per_block: int) -> int:
    """floor((memory * share - reserved) / bytes_per_block), sizes in bytes.

    Raises:
        BadInput: a negative size, or a share outside 0 < share <= 1.
        Refused: less than one block.
    """
    memory = whole(memory, "memory", 0, ID_LIMIT)
    reserved = whole(reserved, "reserved", 0, ID_LIMIT)
    if not isinstance(share, int | float | Fraction) or not 0 < share <= 1:
        raise BadInput(f"share must be above 0 and at most 1, not {share!r}")
    # The shortest decimal form is what the caller wrote: 0.8 is four fifths, not the double next to it.
    room = memory * Fraction(str(share)) - reserved
    count = room // whole(bytes_per_block, "bytes a block", 1, ID_LIMIT)
    if count < 1:
        raise Refused(f"{float(room):.0f} bytes hold no block of {bytes_per_block} bytes")
    return int(count)
