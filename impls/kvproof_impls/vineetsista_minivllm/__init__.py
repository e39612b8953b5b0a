"""Adapter to vineetsista/minivllm."""
