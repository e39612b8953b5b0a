"""Adapter to continuous batching in Hugging Face transformers."""
