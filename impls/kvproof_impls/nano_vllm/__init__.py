"""Adapter to GeeeekExplorer/nano-vllm."""
