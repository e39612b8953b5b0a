"""Adapter to the package nano-vllm-fork."""
