"""Adapter to bLLM."""
