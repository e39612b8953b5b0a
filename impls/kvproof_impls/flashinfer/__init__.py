"""FlashInfer's paged decode attention."""
