"""Planted faults of kernels: what is computed from the slots, features, writes and prefill."""

from __future__ import annotations

from typing import Any

from .kernels import after_decode, sound
from .registry import fault

# ------------------------------------------------------------ KERN-009, KERN-010


@fault("KVP-KERN-009", "what is not served is computed all the same", model="vllm-project/vllm#4128")
def checks_nothing() -> Any:
    kernel, _ = sound()
    kernel.check = lambda *arguments, **features: None
    return kernel


@fault(
    "KVP-KERN-009",
    "a head size that is not served falls through to an assertion",
    model="flashinfer-ai/flashinfer#527",
)
def refuses_without_a_name() -> Any:
    kernel, _ = sound()
    check = kernel.check

    def unnamed(form: Any, *arguments: Any, **features: Any) -> None:
        assert arguments[0].shape[-1] % 8 == 0
        check(form, *arguments, **features)

    kernel.check = unnamed
    return kernel


@fault("KVP-KERN-010", "lse is in base 2", model="flashinfer-ai/flashinfer#5262")
def lse_in_base_2() -> Any:
    return after_decode(lambda out, lse, seq_lens: (out, lse * 1.4426950408889634))


@fault("KVP-KERN-010", "lse is rounded to 16 bits on its way out", model="none known")
def lse_in_16_bits() -> Any:
    return after_decode(lambda out, lse, seq_lens: (out, lse.bfloat16().float()))


# ------------------------------------------------------------ KERN-012


def without(*names: str) -> Any:
    """The kernel that takes these features and forgets them."""
    kernel, _ = sound()
    rows = kernel.rows

    def forgetful(*arguments: Any) -> Any:
        *tensors, features = arguments
        return rows(*tensors, {name: value for name, value in features.items() if name not in names})

    kernel.rows = forgetful
    return kernel


@fault("KVP-KERN-012", "softcap is taken and ignored", model="vllm-project/vllm-metal#665")
def softcap_ignored() -> Any:
    return without("softcap")


@fault("KVP-KERN-012", "the scale of V is taken and ignored", model="lightseekorg/tokenspeed#759")
def v_scale_ignored() -> Any:
    return without("v_scale")


@fault("KVP-KERN-012", "the scale of K is applied twice", model="sgl-project/sglang#24198")
def k_scale_twice() -> Any:
    kernel, _ = sound()
    rows = kernel.rows

    def twice(*arguments: Any) -> Any:
        *tensors, features = arguments
        return rows(*tensors, {**features, "k_scale": features.get("k_scale", 1.0) ** 2})

    kernel.rows = twice
    return kernel


@fault("KVP-KERN-012", "the window holds one position more", model="vllm-project/vllm#3385")
def window_off_by_one() -> Any:
    kernel, _ = sound()
    seen = kernel.seen
    kernel.seen = lambda distance, features: seen(
        distance, {"window": features["window"] + 1} if features.get("window") else {}
    )
    return kernel


@fault("KVP-KERN-012", "ALiBi slopes are those of the KV head", model="vllm-project/vllm#945")
def slopes_of_the_kv_head() -> Any:
    kernel, _ = sound()
    shaped = kernel.shaped

    def wrong(scores: Any, order: Any, features: dict[str, Any]) -> Any:
        if (slopes := features.get("alibi")) is not None:
            features = {**features, "alibi": slopes[order // 4 * 4]}
        return shaped(scores, order, features)

    kernel.shaped = wrong
    return kernel


# ------------------------------------------------------------ KERN-013 to KERN-015


@fault(
    "KVP-KERN-013", "rows are sorted by length and not sorted back", model="Dao-AILab/flash-attention#1455"
)
def rows_stay_sorted() -> Any:
    def change(out: Any, lse: Any, seq_lens: Any) -> Any:
        order = seq_lens.argsort(stable=True)
        return out[order], lse[order]

    return after_decode(change)


@fault(
    "KVP-KERN-013",
    "a row shorter than an eighth of the longest is computed by nobody",
    model="flashinfer-ai/flashinfer#725",
)
def short_rows_left_out() -> Any:
    def change(out: Any, lse: Any, seq_lens: Any) -> Any:
        out[seq_lens * 8 < seq_lens.max()] = 0.0
        return out, lse

    return after_decode(change)


@fault("KVP-KERN-014", "-1 wraps to the last slot of the pool", model="vllm-project/vllm-ascend#16013")
def padding_wraps() -> Any:
    kernel, _ = sound()

    def write(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        kernel.check(lambda *tensors, **named: None)
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.flatten(0, 1)[slots] = new.to(cache.dtype)

    kernel.write = write
    return kernel


@fault("KVP-KERN-014", "all blocks are read before any is copied", model="none known")
def copies_at_once() -> Any:
    kernel, _ = sound()

    def copy_blocks(caches: Any, pairs: Any) -> None:
        for cache in caches:
            held = [cache[source].clone() for source, _ in pairs]
            for (_, target), block in zip(pairs, held, strict=True):
                cache[target].copy_(block)

    kernel.copy_blocks = copy_blocks
    return kernel


@fault("KVP-KERN-014", "bits of bf16 are stored as if they were fp16", model="vllm-project/vllm#54338")
def bits_of_another_dtype() -> Any:
    kernel, torch = sound()
    write = kernel.write

    def raw(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> None:
        if k.dtype == torch.bfloat16 and k_cache.dtype == torch.float16:
            k, v = k.view(torch.float16), v.view(torch.float16)
        write(k, v, k_cache, v_cache, slots)

    kernel.write = raw
    return kernel


@fault("KVP-KERN-015", "the causal mask counts from the first query of the chunk", model="none known")
def causal_from_the_chunk() -> Any:
    kernel, torch = sound()

    def distance(queries: int, length: int) -> Any:
        first = 0 if queries > 1 else length - 1
        return torch.arange(length) - torch.arange(first, first + queries)[:, None]

    kernel.distance = distance
    return kernel


@fault("KVP-KERN-015", "a query sees the drafts behind it", model="none known")
def not_causal() -> Any:
    kernel, _ = sound()
    kernel.seen = lambda distance, features: distance < distance.shape[0]
    return kernel


# ------------------------------------------------------------ NUM


@fault("KVP-NUM-001", "sums of values are kept in bf16", model="none known")
def sums_in_half() -> Any:
    kernel, torch = sound()

    def softmax(scores: Any, values: Any) -> Any:
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[..., None])
        total = torch.zeros(())
        for lo in range(0, scores.shape[-1], 32):
            part = torch.matmul(weights[..., lo : lo + 32], values[:, :, lo : lo + 32])
            total = (total + part).bfloat16().float()
        return total, lse

    kernel.softmax = softmax
    return kernel


@fault("KVP-NUM-001", "scores are rounded to 16 bits before the softmax", model="none known")
def scores_in_half() -> Any:
    kernel, _ = sound()
    scores = kernel.scores
    kernel.scores = lambda q, keys, scale: scores(q, keys, scale).half().float()
    return kernel


@fault("KVP-NUM-002", "there is no maximum under the exponential", model="none known")
def no_maximum() -> Any:
    kernel, torch = sound()

    def softmax(scores: Any, values: Any) -> Any:
        weights = torch.exp(scores)
        total = weights.sum(-1)
        return torch.matmul(weights, values) / total[..., None], torch.log(total)

    kernel.softmax = softmax
    return kernel


@fault("KVP-NUM-002", "what earlier tiles summed is not scaled when the maximum rises", model="none known")
def not_rescaled() -> Any:
    kernel, torch = sound()

    def softmax(scores: Any, values: Any) -> Any:
        out, total = torch.zeros(()), torch.zeros(())
        for lo in range(0, scores.shape[-1], 512):
            tile = scores[..., lo : lo + 512]
            top = scores[..., : lo + 512].amax(-1, keepdim=True)
            weights = torch.exp(tile - top)
            out, total = out + torch.matmul(weights, values[:, :, lo : lo + 512]), total + weights.sum(-1)
        return out / total[..., None], torch.logsumexp(scores, -1)

    kernel.softmax = softmax
    return kernel
