"""Which instantiations the static gates look at: those in instantiations.toml, or all there can be."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from kvproof_kernels import cache_params
from kvproof_kernels.gates import Subject
from kvproof_kernels.prefill_variant import PrefillVariant
from kvproof_kernels.variant import CPP_TYPES, HEAD_SIZES, Feature, Technique, Variant, make_variant

LIST = Path(__file__).parent / "instantiations.toml"
MOST = 24
GROUPS = (1, 2, 3, 4)  # of query heads: larger ones take the same kernels
FEATURES = (Feature.NONE, Feature.SOFTCAP, Feature.ALIBI, Feature.SOFTCAP | Feature.ALIBI)


def listed(arch: str, path: Path = LIST) -> list[Subject]:
    """The committed list, as compiled for `arch`: head groups and sizes may need another instantiation there.

    Raises:
        ValueError: an entry is unknown or not served, or there are too many.
    """
    kinds: dict[str, Callable[..., Subject]] = {
        "decode": _decode,
        "prefill": _prefill,
        "combine": _combine,
        "write": _write,
        "copy_blocks": _copy_blocks,
    }
    subjects = []
    for kind, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if kind not in kinds:
            raise ValueError(f"{path.name}: unknown kind {kind}; known: {', '.join(kinds)}")
        subjects += [kinds[kind](arch=arch, **entry) for entry in entries]
    if len(subjects) > MOST:
        raise ValueError(f"{path.name} lists {len(subjects)} kernels; at most {MOST} keep the session short")
    return subjects


def every(arch: str) -> Iterator[Subject]:
    """Every instantiation that a call can ask for on `arch`, each once."""
    seen = set()
    for dtype, head_dim, group, features in product(CPP_TYPES, HEAD_SIZES, GROUPS, FEATURES):
        variant = make_variant(dtype, head_dim, group, arch=arch, features=features)
        if variant not in seen:
            seen.add(variant)
            yield _of_variant(variant, group, "")
    for dtype, head_dim, features in product(CPP_TYPES, HEAD_SIZES, FEATURES):
        yield _prefill(dtype, head_dim, "", features=features)
    for dtype, head_dim in product(("fp32", "fp16", "bf16"), HEAD_SIZES):
        yield _combine(dtype, head_dim, "")
    for dtype in CPP_TYPES:
        for source in ("bf16", "fp8_e4m3") if dtype == "fp8_e4m3" else (dtype,):
            yield _write(dtype, source, "")
    yield _copy_blocks("")


def _decode(
    dtype: str,
    head_dim: int,
    group: int,
    why: str,
    arch: str,
    features: list[str] | None = None,
    techniques: list[str] | None = None,
) -> Subject:
    asked = Feature.NONE
    for name in features or ():
        asked |= Feature[name.upper()]
    on = Technique.ALL if techniques is None else Technique.NONE
    for name in techniques or ():
        on |= Technique[name.upper()]
    variant = make_variant(dtype, head_dim, group, arch=arch, features=asked, techniques=on)
    return _of_variant(variant, group, why)


def _of_variant(variant: Variant, group: int, why: str) -> Subject:
    exempt = variant.kv == "fp32" and group > 2  # one fp32 head takes 4 bytes a product: nobody can be faster
    return Subject(
        name=f"decode {variant.name}",
        header=variant.header,
        expression=variant.name_expression,
        threads=variant.threads,
        shared=variant.shared_bytes,
        copies=True,
        tensor=variant.core == "tensor",
        in_flight=variant.bytes_in_flight,
        rated=not exempt and variant.techniques == Technique.ALL,
        why=why,
    )


def _prefill(
    dtype: str, head_dim: int, why: str, arch: str = "", features: Feature = Feature.NONE
) -> Subject:
    # Its copies are read many times over, so neither bytes in flight nor the issue rate say much.
    query = "bf16" if dtype == "fp8_e4m3" else dtype
    variant = PrefillVariant(kv=dtype, query=query, head_dim=head_dim, features=features)
    return Subject(
        name=variant.name,
        header=variant.header,
        expression=variant.name_expression,
        threads=variant.threads,
        shared=variant.shared_bytes,
        copies=True,
        tensor=variant.tensor,
        in_flight=0,
        rated=False,
        why=why,
    )


def _plain(name: str, header: str, expression: str, threads: int, why: str) -> Subject:
    """A kernel that neither streams KV by asynchronous copies nor multiplies matrices."""
    return Subject(
        name=name,
        header=header,
        expression=expression,
        threads=threads,
        shared=0,
        copies=False,
        tensor=False,
        in_flight=0,
        rated=False,
        why=why,
    )


def _combine(dtype: str, head_dim: int, why: str, arch: str = "") -> Subject:
    variant = make_variant(dtype, head_dim, 1)
    name = f"combine {dtype} {head_dim}"
    return _plain(name, variant.header, variant.combine_expression, head_dim, why)


def _write(dtype: str, source: str, why: str, arch: str = "") -> Subject:
    types = (t if t == "float" else f"paged::{t}" for t in (CPP_TYPES[dtype], CPP_TYPES[source]))
    name = f"write {dtype}" if source == dtype else f"write {source} as {dtype}"
    expression = f"paged::paged_write<{', '.join(types)}>"
    return _plain(name, "cache.cuh", expression, cache_params.THREADS, why)


def _copy_blocks(why: str, arch: str = "") -> Subject:
    return _plain("copy_blocks", "cache.cuh", cache_params.COPY_EXPRESSION, cache_params.THREADS, why)
