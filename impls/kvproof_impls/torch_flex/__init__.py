"""torch's flex_attention over pages."""
