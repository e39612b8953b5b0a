"""Adapter to sgl-project/mini-sglang."""
