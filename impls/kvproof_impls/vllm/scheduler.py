"""The scheduler of vLLM V1, with the model played by the caller."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvproof.contract import BadInput, Refused, require_new, require_tokens
from kvproof_impls.vllm import adapter

LONGEST = 1 << 24


def model() -> ModelConfig:
    """The smallest Llama: nothing of it is ever loaded.

    vLLM looks at the class in a process of its own, once for a machine, so this is done at import.
    """
    folder = Path(tempfile.mkdtemp())
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1 << 24,
        "max_position_embeddings": LONGEST,
        "torch_dtype": "float32",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST, seed=0
    )


MODEL = model()


class VLLMScheduler:
    capabilities = frozenset({"prefix", "output", "chunked"})
    policy = {"order": "fcfs", "overtake": 0}  # noqa: RUF012
    reserved = (0,)

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        cache = CacheConfig(block_size=block_size, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks
        scheduling = SchedulerConfig(
            max_num_seqs=max_seqs,
            max_num_batched_tokens=max_tokens,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=False,
        )
        everything = VllmConfig(
            scheduler_config=scheduling,
            model_config=MODEL,
            cache_config=cache,
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
        )
        self.engine = Scheduler(
            vllm_config=everything,
            kv_cache_config=adapter.config(num_blocks, block_size),
            block_size=block_size,
            hash_block_size=block_size,
            structured_output_manager=StructuredOutputManager(everything),
        )
        self.hasher = adapter.hashing.get_request_block_hasher(block_size, adapter.HASH)
        self.longest = (num_blocks - 1) * block_size
        self.known: dict[int, Request] = {}
        self.victims: list[int] = []

    def submit(self, rid, tokens, max_new, priority=0):
        require_new(rid, [r for r in self.known if str(r) in self.engine.requests])
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        if len(tokens) + max_new - 1 > self.longest:  # an engine starts only if max_model_len fits the pool
            raise Refused(f"{len(tokens)} + {max_new} tokens: the pool holds {self.longest}")
        params = SamplingParams(max_tokens=max_new, ignore_eos=True)
        self.known[rid] = Request(
            str(rid), list(tokens), params, None, priority=priority, block_hasher=self.hasher
        )
        self.engine.add_request(self.known[rid])

    def has_work(self):
        return self.engine.has_unfinished_requests()

    def plan(self):
        self.planned = out = self.engine.schedule()
        self.victims += map(int, out.preempted_req_ids or ())
        rows = []
        for name, count in out.num_scheduled_tokens.items():
            end = self.engine.requests[name].num_computed_tokens  # it counts the step in when it plans it
            rows.append((int(name), end - count, end, self.engine.kv_cache_manager.get_block_ids(name)[0]))
        self.samples = [hi == self.known[rid].num_tokens for rid, _, hi, _ in rows]
        return rows

    def feed(self, tokens):
        names = list(self.planned.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            # the model runner gives no token for a row that samples nothing
            sampled_token_ids=[[t] if s else [] for t, s in zip(tokens, self.samples, strict=True)],
        )
        self.engine.update_from_output(self.planned, output)
        ended = RequestStatus.FINISHED_LENGTH_CAPPED
        return [int(n) for n in names if self.known[int(n)].status == ended]

    def abort(self, rid):
        self.engine.finish_requests(str(rid), RequestStatus.FINISHED_ABORTED)

    def preempted(self):
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid):
        return list(self.known[rid].output_token_ids)

    def free_blocks(self):
        return self.engine.kv_cache_manager.block_pool.get_num_free_blocks()


make_scheduler = VLLMScheduler
