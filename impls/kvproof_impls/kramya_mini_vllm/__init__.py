"""Adapter to K-RAMYA05/mini-vLLM."""
