"""The attention kernel that vLLM ships and uses by default."""
