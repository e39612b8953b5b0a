"""What kvproof judges: the reference, a plain second one, planted faults, adapters to others."""
