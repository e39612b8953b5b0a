"""Adapter to Wenyueh/MinivLLM."""
