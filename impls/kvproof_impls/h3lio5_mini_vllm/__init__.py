"""Adapter to h3lio5/mini-vllm."""
