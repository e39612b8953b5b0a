"""Adapter to kvstream."""
