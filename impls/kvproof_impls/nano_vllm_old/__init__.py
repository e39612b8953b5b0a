"""Adapter to KKKZOZ/nano-vllm, the older API that most forks have."""
