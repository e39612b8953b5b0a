"""Adapter to ModelTC/lightllm."""
