"""torch's scaled_dot_product_attention on contiguous KV."""
