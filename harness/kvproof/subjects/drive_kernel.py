"""Runs the calls of a case on a kernel and writes down what comes back; judges nothing.

torch is imported here when a kernel is driven, and nowhere else in the harness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvproof.contract import ContractError, KernelFault, wrong_limits
from kvproof.histories.payload import Inputs, inputs, tokens
from kvproof.oracle.floats import BYTES
from kvproof.records import Case, Observation, Operation
from kvproof.subjects.arena import NoRoom, Placed
from kvproof.subjects.drive import Clock, Nonsense, describe, outcome_of
from kvproof.subjects.find import SubjectError

TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn"}


def describe_kernel(kernel: Any) -> dict[str, Any]:
    """What a kernel says of itself, as plain data.

    Raises:
        TypeError: something is not of the contract's type.
        SubjectError: its limits are none of the contract's.
    """
    capabilities = kernel.capabilities
    if isinstance(capabilities, str):
        raise TypeError(f"capabilities is the string {capabilities!r}; a frozenset of names is needed")
    if kernel.layout not in ("NHD", "HND"):
        raise TypeError(f"layout is {kernel.layout!r}; NHD or HND is needed")
    if wrong := wrong_limits(dict(kernel.limits)):
        raise SubjectError(wrong)
    return {
        "capabilities": sorted(str(c) for c in capabilities),
        "members": sorted(n for n in dir(kernel) if not n.startswith("_")),
        "layout": kernel.layout,
        "limits": {str(name): list(values) for name, values in dict(kernel.limits).items()},
    }


def drive_kernel(kernel: Any, case: Case, clock: Clock) -> Iterator[Observation]:
    """Observations of the case's calls, in order; stops after an `error`."""
    for index, op in enumerate(case.history):
        seen = _called(kernel, case, op, lambda step=index: clock(step))  # type: ignore[misc]
        yield seen
        if seen.outcome in ("error", "unserved"):
            return


def _called(kernel: Any, case: Case, op: Operation, timed: Callable[[], Any]) -> Observation:
    given = inputs(case, op)
    try:
        call = Call(kernel, given, op.op)
        with timed():
            value = call.run()
        return Observation(outcome="ok", value=value)
    except NoRoom as error:
        return Observation(outcome="unserved", detail=str(error))
    except KernelFault as fault:
        return Observation(outcome="fault", value={"kind": fault.kind}, detail=str(fault))
    except ContractError as error:
        if given.setting.sparse:  # to refuse a pool is an answer; to read the wrong block is not
            return Observation(outcome="unserved", detail=str(error))
        return Observation(outcome=outcome_of(error), detail=str(error))
    except (Exception, SystemExit) as error:
        outcome = "raised" if given.setting.refuse or given.setting.source else "error"
        return Observation(
            outcome=outcome, detail=str(error) if isinstance(error, Nonsense) else describe(error)
        )


class Call:
    """One call: its tensors in guarded memory, and what is looked at when it has returned."""

    def __init__(self, kernel: Any, given: Inputs, op: str) -> None:
        import torch

        self.torch = torch
        self.kernel = kernel
        self.given = given
        self.op = op
        self.device = str((list(dict(kernel.limits).get("devices", ())) or ["cpu"])[0])
        self.placed: list[Placed] = []
        s = given.setting
        self.cache = getattr(torch, TORCH[s.dtype])
        self.query = getattr(torch, TORCH[s.query_dtype])
        self.features: dict[str, Any] = dict(s.features)
        if "window" in self.features:
            self.features["window"] = int(self.features["window"])
        slopes = given.slopes()
        if slopes is not None:
            self.features["alibi"] = self.put("alibi", slopes, torch.float32)
        self.k, self.v = (self._cache(which) for which in ("k", "v"))

    # ------------------------------------------------------------ tensors

    def put(self, name: str, values: np.ndarray[Any, Any], dtype: Any) -> Any:
        """The values as a tensor in memory of its own."""
        source = self.torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
        placed = Placed(name, source.numel() * source.element_size(), self.given.setting.guard, self.device)
        self.placed.append(placed)
        made = placed.tensor(dtype, source.shape)
        made.copy_(source)
        return made

    def _cache(self, which: str) -> Any:
        s, g = self.given.setting, self.given
        shape = [g.num_blocks, g.block_size, s.kv_heads, s.head_size]
        hnd = self.kernel.layout == "HND"
        name = f"{which}_cache"
        if not s.sparse:
            pool = g.pool(which)
            return self.put(name, pool.transpose(0, 2, 1, 3) if hnd else pool, self.cache)
        used, blocks = g.backed(which)
        nbytes = int(np.prod([np.int64(n) for n in shape])) * BYTES[s.dtype]
        placed = Placed(name, nbytes, s.guard, self.device)
        self.placed.append(placed)
        if hnd:
            shape[1], shape[2] = shape[2], shape[1]
            blocks = np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))
        made = placed.tensor(self.cache, shape)
        for block, content in zip(used, blocks, strict=True):
            made[block].copy_(self.torch.from_numpy(content))
        return made

    def held(self, cache: Any) -> np.ndarray[Any, Any]:
        """A cache as it is now: float32 [blocks, block_size, kv_heads, dim]."""
        found = self._plain(cache)
        return found.transpose(0, 2, 1, 3) if self.kernel.layout == "HND" else found

    def _plain(self, tensor: Any) -> np.ndarray[Any, Any]:
        """A copy in float32: the kernel may use the memory again."""
        return np.array(tensor.to(self.torch.float32).cpu().numpy())

    # ------------------------------------------------------------ calls

    def run(self) -> dict[str, Any]:
        """Call the kernel; a dict of plain arrays."""
        answer: dict[str, Any] = getattr(self, f"_{self.op}")()
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        answer["torn"] = [placed.name for placed in self.placed if placed.torn()]
        return answer

    def _common(self) -> list[Any]:
        g, int32 = self.given, self.torch.int32
        table = self.put("block_table", g.table, int32)
        lens = self.put("seq_lens", np.array(g.lens, np.int32), int32)
        return [self.k, self.v, table, lens, g.scale]

    def _decode(self) -> dict[str, Any]:
        q = self.put("q", self.given.query, self.query)
        return self._attended(self.kernel.decode, [q, *self._common()])

    def _prefill(self) -> dict[str, Any]:
        q = self.put("q", self.given.query, self.query)
        assert self.given.ends is not None
        ends = self.put("cu_seqlens_q", self.given.ends, self.torch.int32)
        return self._attended(self.kernel.prefill, [q, ends, *self._common()])

    def _replay(self) -> dict[str, Any]:
        """Captured with lengths of 1, replayed with the case's own."""
        q = self.put("q", self.given.query, self.query)
        arguments = [q, *self._common()]
        before = self._digests()
        wanted = arguments[4].clone()
        arguments[4].fill_(1)
        self.kernel.decode(*arguments, **self.features)  # what is made at first use must not be captured
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            out, lse = self.kernel.decode(*arguments, **self.features)
        arguments[4].copy_(wanted)
        graph.replay()
        self.torch.cuda.synchronize()
        return {**self._answer(q, out, lse), "changed": self._changed(before)}

    def _attended(self, call: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
        if self.given.setting.refuse:
            return self._refused(call, arguments)
        before = self._digests()
        found = call(*arguments, **self.features)
        if not isinstance(found, tuple) or len(found) != 2:
            raise Nonsense(f"{self.op} returned {type(found).__name__}; (out, lse) is needed")
        return {**self._answer(arguments[0], *found), "changed": self._changed(before)}

    def _digests(self) -> dict[str, int]:
        """Checksums of the inputs, by name: what the call may not write. A sparse cache is too large."""
        into = self.op in ("write", "copy_blocks") or self.given.setting.sparse
        return {p.name: p.digest() for p in self.placed if not (into and p.name.endswith("_cache"))}

    def _changed(self, before: dict[str, int]) -> list[str]:
        return [p.name for p in self.placed if p.name in before and p.digest() != before[p.name]]

    def _answer(self, q: Any, out: Any, lse: Any) -> dict[str, Any]:
        if tuple(out.shape) != tuple(q.shape) or out.dtype != q.dtype:
            raise Nonsense(
                f"out is {out.dtype} {list(out.shape)}; {q.dtype} {list(q.shape)} is needed, as of q"
            )
        if lse is not None and tuple(lse.shape) != tuple(q.shape[:2]):
            raise Nonsense(f"lse is {list(lse.shape)}; {list(q.shape[:2])} is needed")
        return {
            "out": self._plain(out),
            "lse": None if lse is None else self._plain(lse),
            "lse_dtype": "none" if lse is None else str(lse.dtype).removeprefix("torch."),
            "lse_declared": "lse" in self.kernel.capabilities,
        }

    def _write(self) -> dict[str, Any]:
        s = self.given.setting
        new = tokens(self.given)
        dtype = getattr(self.torch, TORCH[s.source or s.query_dtype])
        k, v = (self.put(name, values, dtype) for name, values in new.items())
        slots = self.put("slot_mapping", np.array(s.slots, np.int64), self.torch.int64)
        before = self._digests()
        self.kernel.write(k, v, self.k, self.v, slots)
        return {"k": self.held(self.k), "v": self.held(self.v), "changed": self._changed(before)}

    def _copy_blocks(self) -> dict[str, Any]:
        third = self._cache("k")  # as of another layer: there may be more caches than two
        self.kernel.copy_blocks([self.k, self.v, third], [(a, b) for a, b in self.given.setting.pairs])
        return {"k": self.held(self.k), "v": self.held(self.v), "third": self.held(third)}

    # ------------------------------------------------------------ calls that must be refused

    def _refused(self, call: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
        """The call with what `refuse` says is wrong in it."""
        torch, wrong = self.torch, self.given.setting.refuse
        q, k, v, table, lens, scale = arguments
        features = dict(self.features)
        if wrong == "rows of the table":
            table = table[:-1].contiguous()
        elif wrong == "dtype of the table":
            table = table.to(torch.float32)
        elif wrong == "dtype of the query":
            q = q.to(torch.float64)
        elif wrong == "head size of the query":
            q = torch.cat([q, q], -1)
        elif wrong == "query heads":
            q = torch.cat([q, q[:, :1]], 1)
        elif wrong == "shape of the values":
            v = v[..., : v.shape[-1] // 2].contiguous()
        elif wrong == "rank of the cache":
            k = k.flatten(0, 1)
        elif wrong.startswith("feature "):
            name = wrong.removeprefix("feature ")
            slopes = torch.full(q.shape[1:2], 0.5, device=q.device)
            features[name] = {"alibi": slopes, "window": 2}.get(name, 2.0)
        out, _ = call(q, k, v, table, lens, scale, **features)
        return {"answered": list(out.shape)}
