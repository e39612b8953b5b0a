"""The benchmark: control-plane cells and trace replay through the contract."""
