"""Adapter to K-RAMYA05/mini-vLLM with its prefix cache."""
