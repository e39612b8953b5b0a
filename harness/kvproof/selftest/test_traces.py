"""Trace readers, the tokens made from block ids, and the synthetic trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvproof.bench.lru import ceiling
from kvproof.bench.traces import BadTrace, Request, prompt, read, synthetic, with_ids

ROWS = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [90, 17]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 0, "hash_ids": [90, 40]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:05.0319600,3180,8"
)


def write(path: Path, text: str, compress: bool = False) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_mooncake(tmp_path: Path, compress: bool) -> None:
    # The name misleads on purpose: the content decides.
    trace = read(write(tmp_path / "a.csv", "\n".join(map(json.dumps, ROWS)) + "\n\n", compress))
    first, second = trace.requests
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, 700, 5)
    assert second.arrival_s == 1.5
    assert first.block_ids is not None
    assert second.block_ids is not None
    assert [first.block_ids.tolist(), second.block_ids.tolist()] == [[0, 1], [0, 2]]


@pytest.mark.parametrize("compress", [False, True])
def test_azure(tmp_path: Path, compress: bool) -> None:
    trace = read(write(tmp_path / "trace.jsonl", AZURE, compress))
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(4808, 10), (3180, 8)]
    assert trace.requests[1].arrival_s == pytest.approx(1.052, abs=1e-5)
    assert trace.requests[0].block_ids is None
    assert ceiling(with_ids(trace).requests, 16) == 0.0


def row(**changes: object) -> str:
    fields = {**ROWS[1], **changes}
    return json.dumps({k: v for k, v in fields.items() if v is not None})


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (row(hash_ids=None), "no field hash_ids"),
        (row(hash_ids=[1]), "hash_ids has 1 ids; a prompt of 1024 tokens needs 2"),
        (row(hash_ids=[1, -2]), "an id of hash_ids is -2"),
        (row(input_length=0), "input_length is 0; allowed: an integer of at least 1"),
        (row(output_length=1.5), "output_length is 1.5"),
        (row(timestamp=-1), "timestamp is -1"),
        ("{", "not JSON"),
        ("[]", "no field timestamp"),
    ],
)
def test_bad_mooncake_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(BadTrace, match="t: line 2") as e:
        read(write(tmp_path / "t", json.dumps(ROWS[0]) + "\n" + line))
    assert named in str(e.value)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("2023-11-16 18:17:03,1", "2 columns"),
        ("yesterday,1,1", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:17:03,0,1", "ContextTokens is 0"),
        ("2023-11-16 18:17:03,1,-4", "GeneratedTokens is '-4'"),
        ("2023-11-16 18:17:03+00:00,1,4", "time zone"),
    ],
)
def test_bad_azure_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(BadTrace, match="line 4") as e:
        read(write(tmp_path / "t", AZURE + "\n" + line))
    assert named in str(e.value)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "line 1"),
        (b"a,b,c\n1,2,3", "line 1: starts with 'a,b,c'; allowed: Mooncake"),
        (b"\xff\xfe\x00", "not text"),
        (b"\x1f\x8b\x00", "gzip"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, data: bytes, named: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(BadTrace) as e:
        read(path)
    assert named in str(e.value)


def request(ids: list[int], tokens: int) -> Request:
    return Request(0.0, tokens, 1, np.array(ids, dtype=np.int32))


@pytest.mark.parametrize("block_size", [1, 16, 128, 512])
def test_prompt_tokens_follow_the_ids(block_size: int) -> None:
    a, b = prompt(request([3, 7], 900), block_size), prompt(request([3, 8], 900), block_size)
    full = 900 // block_size
    assert a.dtype == np.int32
    assert len(a) == full * block_size + 1
    same = min(512 // block_size, full) * block_size
    assert (a[:same] == b[:same]).all()
    assert not set(a[same:-1]) & set(b[same:-1])
    assert len(set(a.tolist())) == len(a)  # no token comes twice, so no two blocks are equal


def test_tokens_do_not_depend_on_the_block_size() -> None:
    assert prompt(request([3, 7], 1024), 16).tolist() == prompt(request([3, 7], 1024), 512).tolist()


def test_highest_id_stays_in_int32() -> None:
    assert prompt(request([2**22 - 2], 512), 512).max() == (2**22 - 2) * 512 + 512


def test_prompt_refuses() -> None:
    with pytest.raises(ValueError, match="divisors of 512"):
        prompt(request([1], 100), 24)
    with pytest.raises(ValueError, match="no block ids"):
        prompt(Request(0.0, 5, 1), 16)


def test_synthetic_is_seeded() -> None:
    def key(seed: int) -> list[object]:
        return [
            (r.arrival_s, r.prompt_tokens, r.output_tokens, np.asarray(r.block_ids).tolist())
            for r in synthetic(seed, 50).requests
        ]

    assert key(1) == key(1)
    assert key(1) != key(2)
    with pytest.raises(ValueError, match="at least 1"):
        synthetic(1, 0)


def test_synthetic_has_the_published_statistics() -> None:
    requests = synthetic(0, 6000).requests
    prompts = np.array([r.prompt_tokens for r in requests])
    outputs = np.array([r.output_tokens for r in requests])
    gaps = np.diff([r.arrival_s for r in requests])
    assert ceiling(requests, 16) == pytest.approx(0.3736, abs=0.03)
    assert prompts.mean() == pytest.approx(12_035, rel=0.1)
    assert np.median(prompts) == pytest.approx(6_909, rel=0.1)
    assert np.quantile(prompts, 0.9) == pytest.approx(27_367, rel=0.1)
    assert prompts.max() <= 126_195
    assert outputs.mean() == pytest.approx(343, rel=0.05)
    assert np.median(outputs) == pytest.approx(350, rel=0.05)
    assert 1 / gaps.mean() == pytest.approx(3.4, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(3.03, rel=0.15)


def test_synthetic_shares_one_system_prompt_and_whole_blocks_only() -> None:
    requests = synthetic(4, 400).requests
    full: set[int] = set()
    partial: set[int] = set()
    for r in requests:
        assert r.block_ids is not None
        ids, whole = r.block_ids.tolist(), r.prompt_tokens // 512
        assert ids[0] == 0
        assert len(ids) == -(-r.prompt_tokens // 512)
        assert len(set(ids)) == len(ids)
        full.update(ids[:whole])
        partial.update(ids[whole:])
    assert not full & partial
