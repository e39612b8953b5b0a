"""Imports of SGLang on a machine without torchvision, whose wheel loads beside its own torch only."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace


class _Empty(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> type[SimpleNamespace]:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


warnings.filterwarnings("ignore")
if importlib.util.find_spec("torchvision") is None:
    import transformers.utils.import_utils as asked

    asked.is_torchvision_available()  # transformers remembers the true answer
    sys.meta_path.append(_Finder())

from sglang.srt.managers.schedule_batch import ReqKvInfo  # noqa: E402, F401
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402, F401
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams  # noqa: E402, F401
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402, F401
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402, F401
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402, F401
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402, F401
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402, F401
