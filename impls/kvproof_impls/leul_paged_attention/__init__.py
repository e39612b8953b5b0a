"""Adapter to Leul-Negash/paged-attention-from-scratch."""
