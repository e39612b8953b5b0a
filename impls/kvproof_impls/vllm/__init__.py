"""Adapter to vLLM V1."""
