"""Adapter to tang-jiapeng/nano-vllm-v1."""
