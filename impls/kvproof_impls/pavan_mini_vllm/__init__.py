"""Adapter to pavanbobba09/mini-vllm."""
