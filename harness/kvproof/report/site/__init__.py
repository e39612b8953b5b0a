"""The dashboard: static pages that open from disk, made of result files."""
