"""K-RAMYA05/mini-vLLM with its prefix cache, which is off by default."""

from kvproof_impls.kramya_mini_vllm.manager import RamyaManager
from kvproof_impls.kramya_mini_vllm.scheduler import RamyaScheduler


class CachedScheduler(RamyaScheduler):
    cached = True


make, make_scheduler = RamyaManager, CachedScheduler
