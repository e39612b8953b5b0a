"""Adapter to jianzhnie/mini-vllm."""
