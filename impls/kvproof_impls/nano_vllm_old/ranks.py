"""Tensor parallelism of nano-vllm's older API: one block manager, and pickles of its sequences."""

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

from kvproof.contract import BadInput, OutOfBlocks, Refused, UnknownSequence, require_new, require_tokens
from kvproof_impls.nano_vllm_old.manager import OldNanoManager


class OldNanoRanks:
    capabilities = frozenset({"worker_view"})

    def __init__(self, manager: OldNanoManager, world: int) -> None:
        self.manager, self.decisions = manager, 0
        self.held: list[dict[int, Any]] = [manager.live, *({} for _ in range(1, world))]
        self.views: dict[int, tuple[int, list[int]]] = {}

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        self._look(operations)
        order = sorted(range(len(operations)), key=lambda i: operations[i][0] not in ("free", "preempt"))
        answers = {i: getattr(self, f"_{operations[i][0]}")(*operations[i][1:]) for i in order}
        for rank in range(1, len(self.held)):
            self.held[rank] = {seq: sent(request) for seq, request in self.manager.live.items()}
        self.decisions += 1
        return [answers[i] for i in range(len(operations))]

    def _look(self, operations: Sequence[tuple[Any, ...]]) -> None:
        """Their scheduler asks before it takes anything, and gives this no wrong operations."""
        live, missing = self.manager.live, -self.manager.free_blocks()
        if len({o[1] for o in operations}) < len(operations):
            raise BadInput("a sequence stands in two operations")
        for name, seq, *tokens in operations:
            if name == "add":
                require_new(seq, live)
            elif seq not in live:
                raise UnknownSequence(f"no sequence {seq}")
            elif bool(live[seq].block_table) == (name == "resume") and name != "free":
                raise Refused(
                    f"{name} of sequence {seq}, which is {'running' if name == 'resume' else 'preempted'}"
                )
            if tokens:
                require_tokens(tokens[0])
            length, held = (len(live[seq]), len(live[seq].block_table)) if seq in live else (0, 0)
            length = 0 if name in ("free", "preempt") else length + sum(map(len, tokens))
            missing += -(-length // self.manager.manager.block_size) - held
        if missing > 0:
            raise OutOfBlocks(f"{missing} blocks are missing")

    def _add(self, seq: int, tokens: list[int]) -> int:
        self.manager.add(seq, list(tokens))
        return self._prefill(seq)

    def _append(self, seq: int, tokens: list[int]) -> None:
        request, reached = self.manager.live[seq], []
        for token in tokens:  # a decode each, for which a worker needs the last token
            self.manager.append(seq, [token])
            reached.append(sent(request).last_token)
        self.views[seq] = request.num_tokens - len(tokens), reached

    def _free(self, seq: int) -> None:
        self.manager.free(seq)

    def _preempt(self, seq: int) -> None:
        self.manager.manager.deallocate(self.manager.live[seq])

    def _resume(self, seq: int) -> int:
        self.manager.manager.allocate(self.manager.live[seq])
        return self._prefill(seq)

    def _prefill(self, seq: int) -> int:
        """A worker computes all tokens that are not cached."""
        request = sent(self.manager.live[seq])
        tokens = getattr(request, "token_ids", None) or [request.last_token]
        self.views[seq] = request.num_cached_tokens, tokens[request.num_cached_tokens :]
        return self.manager.live[seq].num_cached_tokens

    def view(self, rank: int, seq: int) -> tuple[int, list[int]]:
        return self.views[seq]

    def form(self) -> None:
        pass  # they have no way to go on after the loss of a rank

    def table(self, rank: int, seq: int) -> list[int]:
        if seq not in self.held[rank]:
            raise UnknownSequence(f"no sequence {seq}")
        return list(self.held[rank][seq].block_table)

    def digest(self, rank: int) -> bytes:
        state = sorted((seq, s.num_tokens, s.block_table) for seq, s in self.held[rank].items())
        return hashlib.sha256(repr(state).encode()).digest()

    def epoch(self, rank: int) -> int:
        return self.decisions

    def free_blocks(self, rank: int) -> int:
        return self.manager.free_blocks()

    def lost(self, rank: int) -> list[int]:
        return []


def sent(request: Any) -> Any:
    """A sequence as it comes out of their shared memory, which loses nothing."""
    return pickle.loads(pickle.dumps(request))
