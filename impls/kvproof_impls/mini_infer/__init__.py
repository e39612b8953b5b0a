"""Adapter to mini-infer."""
