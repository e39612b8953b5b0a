"""The CUDA kernels run on the CPU through simt/, in three builds that between them see what goes wrong.

    plain: random thread order, late copies, NaN in unset memory, red zones around every buffer
    asan: AddressSanitizer and UBSan; what the call must not touch is poisoned by hand
    tsan: ThreadSanitizer as a race detector for shared and global memory

Each call writes a case file and runs a program in a process of its own, so that a stop harms nobody.
"""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvproof_kernels import cache_params, host_build
from kvproof_kernels import problem as problems
from kvproof_kernels import variant as variants
from kvproof_kernels.prefill_variant import prefill_params, prefill_variant
from kvproof_kernels.shim_case import Case, Ranges, memory_of, merge
from kvproof_kernels.shim_report import ShimStopped, stopped

Build = Literal["plain", "asan", "tsan"]

CUDA = Path(__file__).parent / "cuda"
SIMT = Path(__file__).parent / "simt"
COMMON = ("-g", "-fno-strict-aliasing", "-Wno-unknown-pragmas", f"-I{SIMT}")
FLAGS: dict[str, tuple[str, ...]] = {
    "plain": ("-O2",),
    "asan": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "tsan": ("-O1", "-fsanitize=thread"),
}
TIMEOUT_S = 300
SMS = 4  # of that GPU: few, so that small calls have both several splits and long ones


@functools.cache
def _runner(build: Build) -> Path:
    """The program that loads a kernel and runs a case; one a build."""
    flags = (*COMMON, *FLAGS[build])
    # The scheduler itself is not instrumented: it orders the fibers, and says so to ThreadSanitizer.
    scheduler = ("-fno-sanitize=thread", "-DSIMT_TSAN") if build == "tsan" else ()
    objects = [
        host_build.build([SIMT / name], [*flags, *scheduler, "-c"], "exe")
        for name in ("simt.cpp", "run_case.cpp")
    ]
    return host_build.build(objects, [*flags, "-rdynamic"], "exe")


class Shim:
    """The kernels of a source folder under one build.

    Tensors are torch's, on the CPU; the members are the contract's, with layout "NHD" or "HND". What the
    kernels do not serve is a ValueError that names the limit.

    seed: of the order in which threads and blocks run; a right kernel gives the same bits for each.
    cuda: folder of the kernels' source.
    techniques: those of chapter section 3.2.7 that decode uses; the result does not depend on them.
    splits: parts that decode cuts the longest sequence into; default as many as fill a small GPU.

    Every member raises ShimStopped, host_build.NoCompiler, and ValueError.
    """

    def __init__(
        self,
        build: Build = "plain",
        seed: int = 0,
        cuda: Path = CUDA,
        techniques: variants.Technique = variants.Technique.ALL,
        splits: int | None = None,
    ) -> None:
        if build not in FLAGS:
            raise ValueError(f"build is {build!r}; allowed: {', '.join(FLAGS)}")
        self.build: Build = build
        self.seed = seed
        self.cuda = cuda
        self.techniques = techniques
        self.splits = splits
        self._library = functools.cache(self._compile)

    def decode(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        layout: str = "NHD",
        **features: Any,
    ) -> tuple[Any, Any]:
        """Attention of one query token a sequence; out [B, Hq, D] of q's dtype and lse float32 [B, Hq]."""
        problem = problems.decode_problem(
            q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features
        )
        variant = variants.decode_variant(problem, techniques=self.techniques)
        splits = self.splits or variants.choose_splits(problem, SMS)
        heads = problem.batch * problem.query_heads
        case = Case()
        problem, places = _place_inputs(case, problem, q, k_cache, v_cache, block_table, seq_lens, None)
        pointers = variants.Pointers(
            **places,
            part_out=case.output("part_out", heads * splits * problem.head_dim * 4),
            part_lse=case.output("part_lse", heads * splits * 4),
        )
        params = case.parameters(variants.params(problem, pointers, splits))
        library = self._library(variant.entry, **variant.defines)
        return self._attend(case, params, library, variant.function, q)

    def prefill(
        self,
        q: Any,
        cu_seqlens_q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        layout: str = "NHD",
        **features: Any,
    ) -> tuple[Any, Any]:
        """Causal attention of several query tokens a sequence; out [T, Hq, D] and lse float32 [T, Hq]."""
        tensors = (q, cu_seqlens_q, k_cache, v_cache, block_table, seq_lens)
        problem = problems.prefill_problem(*tensors, scale, layout, **features)
        variant = prefill_variant(problem)
        case = Case()
        problem, places = _place_inputs(
            case, problem, q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q
        )
        ends = case.add("cu_seqlens_q", cu_seqlens_q.numpy())
        params = case.parameters(prefill_params(problem, variants.Pointers(**places), ends))
        library = self._library(variant.entry, **variant.defines)
        return self._attend(case, params, library, variant.function, q)

    def write(
        self,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        slot_mapping: Any,
        layout: str = "NHD",
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Store k and v [T, Hkv, D] into the slots of slot_mapping, int64 [T]; -1 is skipped."""
        problem = problems.write_problem(k, v, k_cache, v_cache, slot_mapping, layout, k_scale, v_scale)
        if not problem.tokens:
            return
        slots = slot_mapping.numpy()
        used = slots[slots >= 0]
        live = _rows(problem, used // problem.block_size, used % problem.block_size)
        case = Case()
        params = cache_params.write_params(
            problem,
            k=case.add("k", memory_of(k)),
            v=case.add("v", memory_of(v)),
            k_cache=case.add("k_cache", memory_of(k_cache), live, writable=True),
            v_cache=case.add("v_cache", memory_of(v_cache), live, writable=True),
            slots=case.add("slot_mapping", slots),
        )
        library = self._library("entry_cache.cu", **cache_params.write_defines(problem))
        self._run(case, case.parameters(params), library, "kvproof_write", case.take_back)

    def copy_blocks(self, caches: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in every cache, one pair after another."""
        problem = problems.copy_problem(caches, pairs)
        if not caches or not pairs:
            return
        library = self._library("entry_cache.cu", KVPROOF_KV="float", KVPROOF_SOURCE="float")
        case = Case()
        blocks = np.unique(np.array(problem.pairs, np.int64))
        places = []
        for i, cache in enumerate(caches):
            live = merge(blocks * problem.stride_bytes[i], problem.block_bytes[i])
            places.append(case.add(f"cache {i}", memory_of(cache), live, writable=True))
        moves = case.add("pairs", np.array(problem.pairs, np.int64))
        for params in cache_params.copy_params(problem, places, moves, len(problem.pairs)):
            self._run(case, case.parameters(params), library, "kvproof_copy_blocks", case.take_back)

    def _attend(self, case: Case, params: int, library: Path, function: str, q: Any) -> tuple[Any, Any]:
        import torch

        answer: list[Any] = []

        def collect(path: Path) -> None:
            for name, dtype, shape in (("out", q.dtype, q.shape), ("lse", torch.float32, q.shape[:2])):
                memory = np.frombuffer(case.read(path, name), np.uint8)
                answer.append(torch.from_numpy(memory).view(dtype).reshape(shape))

        self._run(case, params, library, function, collect)
        return answer[0], answer[1]

    def _compile(self, entry: str, **defines: str | int) -> Path:
        flags = (*COMMON, *FLAGS[self.build], "-x", "c++")
        return host_build.build([self.cuda / entry], flags, "so", defines)

    def _run(
        self, case: Case, parameters: int, library: Path, function: str, collect: Callable[[Path], None]
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="kvproof-shim-") as folder:
            path = Path(folder) / "case"
            case.write(path, parameters, self.seed)
            command = [str(_runner(self.build)), str(library), function, str(path)]
            try:
                done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise ShimStopped("barrier", f"{function} did not end in {TIMEOUT_S} s") from None
            if done.returncode:
                raise stopped(done.returncode, done.stderr.decode(errors="replace"), str(library))
            collect(path)


def _rows(problem: problems.PagedCache, blocks: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> Ranges:
    """Where in a cache's memory the rows of all KV heads of these slots are."""
    item = problems.ITEM_BYTES[problem.dtype]
    tokens = blocks.astype(np.int64) * problem.stride_block + offsets.astype(np.int64) * problem.stride_token
    heads = np.arange(problem.kv_heads, dtype=np.int64) * problem.stride_head
    return merge((tokens[:, None] + heads[None, :]).reshape(-1) * item, problem.head_dim * item)


def _place_inputs(
    case: Case,
    problem: problems.Problem,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    cu_seqlens_q: Any | None,
) -> tuple[problems.Problem, dict[str, int]]:
    """Place the tensors and results of decode or prefill; of caches and table what is seen is live."""
    lens = seq_lens.numpy().astype(np.int64)
    if lens.size and lens.max() > problem.max_len:
        raise ValueError(f"a sequence has {lens.max()} tokens; block_table has room for {problem.max_len}")
    queries = 1 if cu_seqlens_q is None else np.diff(cu_seqlens_q.numpy().astype(np.int64))
    begin = np.maximum(lens - queries + 1 - (problem.window or problem.max_len), 0)

    # The first entries of rows lie at multiples of 8 bytes, which AddressSanitizer needs to tell them apart.
    stride = problem.table_columns + problem.table_columns % 2
    table = np.full((problem.batch, stride), -1, np.int32)
    table[:, : problem.table_columns] = block_table.numpy()
    rows = np.repeat(np.arange(problem.batch), np.maximum(lens - begin, 0))
    tokens = np.concatenate([np.arange(0), *(np.arange(b, n) for b, n in zip(begin, lens, strict=True))])
    entries = rows * stride + tokens // problem.block_size
    blocks = table.reshape(-1)[entries]
    if blocks.size and (blocks.min() < 0 or blocks.max() >= problem.blocks):
        wrong = blocks[(blocks < 0) | (blocks >= problem.blocks)][0]
        raise ValueError(f"block_table holds block {wrong} for a token; the caches have {problem.blocks}")
    live = _rows(problem, blocks, tokens % problem.block_size)

    places = {
        "q": case.add("q", memory_of(q)),
        "k": case.add("k_cache", memory_of(k_cache), live),
        "v": case.add("v_cache", memory_of(v_cache), live),
        "table": case.add("block_table", table, merge(entries * 4, 4)),
        "seq_lens": case.add("seq_lens", seq_lens.numpy()),
        "out": case.output("out", memory_of(q).size),
        "lse": case.output("lse", problem.queries * problem.query_heads * 4),
        "alibi": case.add("alibi", problem.alibi.numpy()) if problem.alibi is not None else 0,
    }
    return dataclasses.replace(problem, table_stride=stride), places
