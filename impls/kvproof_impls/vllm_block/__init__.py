"""Adapter to vLLM V0 as packed by vllm-block."""
