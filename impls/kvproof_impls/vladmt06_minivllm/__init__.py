"""Adapter to vladmt06/minivllm."""
