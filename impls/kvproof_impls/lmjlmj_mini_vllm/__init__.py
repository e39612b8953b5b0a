"""Adapter to lmjlmj1234/mini-vllm-continuous-batching-lab."""
