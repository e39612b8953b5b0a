"""Adapter to ubermenchh/mini-vllm."""
