"""Adapter to SGLang."""
