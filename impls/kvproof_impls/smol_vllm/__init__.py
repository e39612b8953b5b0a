"""Adapter to smol-vllm."""
