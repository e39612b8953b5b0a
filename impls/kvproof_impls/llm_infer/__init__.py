"""Adapter to llm-infer."""
