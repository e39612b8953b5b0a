"""python -m kvproof_kernels: compile the kernels for GPUs, without one, and look at what came out."""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from kvproof_kernels import gates, listed, nvcc, sass
from kvproof_kernels.cache_params import CopyParams, WriteParams
from kvproof_kernels.gates import Subject, Verdict
from kvproof_kernels.launch import LaunchFailed, gpu
from kvproof_kernels.nvrtc import ARCHITECTURES, CompileFailed, Cubin, NoNvrtc, compile_kernel, version
from kvproof_kernels.prefill_variant import PrefillParams, PrefillVariant
from kvproof_kernels.variant import Params, make_variant

TABLE = Path("results") / "static-gates.md"
WORKERS = 2  # NVRTC compiles on one core a kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m kvproof_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", title="commands")
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument(
        "--arch",
        action="append",
        choices=[*ARCHITECTURES, "native"],
        help="one architecture, again for more; native: that of the GPU here. Default: all but native",
    )
    which.add_argument(
        "--all", action="store_true", help="every instantiation, not only those in instantiations.toml"
    )
    commands.add_parser("compile", parents=[which], help="compile with NVRTC into the cache")
    judged = commands.add_parser("gates", parents=[which], help="compile, and hold against the static gates")
    judged.add_argument(
        "--write", type=Path, metavar="FILE", help=f"write the table; the committed is {TABLE}"
    )
    commands.add_parser("nvcc", help="compile the C interface with nvcc, the second route")
    asked = parser.parse_args(arguments)
    if not asked.command:
        parser.print_help()
        return 0
    try:
        if asked.command == "nvcc":
            return _nvcc()
        archs = [_native() if arch == "native" else arch for arch in asked.arch or ARCHITECTURES]
        pairs = [(arch, one) for arch in archs for one in _subjects(arch, asked.all)]
        if asked.command == "compile":
            return _compile(pairs)
        return _gates(pairs, asked.write, committed=not asked.all)
    except (NoNvrtc, sass.NoTool, CompileFailed, LaunchFailed) as failed:
        print(failed, file=sys.stderr)
        return 1


def _native() -> str:
    return gpu(0).arch


def _subjects(arch: str, everything: bool) -> Iterable[Subject]:
    return listed.every(arch) if everything else listed.listed(arch)


def _compile(pairs: Sequence[tuple[str, Subject]]) -> int:
    def one(pair: tuple[str, Subject]) -> tuple[str, Subject, Cubin]:
        arch, subject = pair
        return arch, subject, compile_kernel(subject.header, subject.expression, arch)

    with ThreadPoolExecutor(WORKERS) as workers:
        for arch, subject, cubin in workers.map(one, pairs):
            state = "compiled" if cubin.fresh else "was there"
            print(f"{arch:7} {subject.name:48} {cubin.path.stat().st_size >> 10:4} KiB {state}", flush=True)
    print(f"{len(pairs)} kernels, NVRTC {version()}")
    return 0


def _gates(pairs: Sequence[tuple[str, Subject]], write: Path | None, committed: bool) -> int:
    def one(pair: tuple[str, Subject]) -> Verdict:
        arch, subject = pair
        cubin = compile_kernel(subject.header, subject.expression, arch)
        return gates.judge(subject, arch, sass.read(cubin.path))

    verdicts = []
    with ThreadPoolExecutor(WORKERS) as workers:
        for verdict in workers.map(one, pairs):
            verdicts.append(verdict)
            print(gates.line(verdict), flush=True)
    failed = [verdict for verdict in verdicts if verdict.problems]
    drifted = []
    if write and failed:
        print(f"{write} is not written: a kernel fails a gate")
    elif write:
        subjects = {subject.name: subject for _, subject in pairs}
        write.write_text(gates.table(verdicts, list(subjects.values()), version()), encoding="utf-8")
    elif committed:
        table = TABLE.read_text(encoding="utf-8") if TABLE.is_file() else ""
        drifted = gates.drift(verdicts, table)
        print(*drifted, sep="\n", end="\n" if drifted else "")
    warned = sum(bool(verdict.warnings) for verdict in verdicts)
    print(
        f"{len(verdicts)} kernels, NVRTC {version()}: {len(failed)} fail a gate, {warned} warnings, "
        f"{len(drifted)} off the committed table"
    )
    return 1 if failed or drifted else 0


def _nvcc() -> int:
    """Compile the C interfaces with nvcc for every architecture, and compare their structs with ours."""
    try:
        print(f"nvcc {nvcc.version()}")
    except nvcc.NoNvcc as missing:
        print(f"second route not checked: {missing}")
        return 0
    decode = make_variant("bf16", 128, 4)
    prefill = PrefillVariant(kv="bf16", query="bf16", head_dim=128)
    cache = {"KVPROOF_KV": "e4m3", "KVPROOF_SOURCE": "bf16"}
    writes = {"kvproof_write_bytes": WriteParams, "kvproof_copy_blocks_bytes": CopyParams}
    entries: tuple[tuple[str, Mapping[str, str | int], Mapping[str, type[ctypes.Structure]]], ...] = (
        (decode.entry, decode.defines, {"kvproof_decode_bytes": Params}),
        (prefill.entry, prefill.defines, {"kvproof_prefill_bytes": PrefillParams}),
        ("entry_cache.cu", cache, writes),
    )
    wrong = 0
    for arch, (entry, defines, structs) in product(ARCHITECTURES, entries):
        library = nvcc.build(entry, arch, defines)
        print(f"{arch:7} {entry:18} {library.stat().st_size >> 10} KiB", flush=True)
        for function, struct in structs.items():
            told, ours = getattr(ctypes.CDLL(str(library)), function)(), ctypes.sizeof(struct)
            if told != ours:
                print(f"{entry}: its struct has {told} bytes, {struct.__name__} in Python {ours}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
