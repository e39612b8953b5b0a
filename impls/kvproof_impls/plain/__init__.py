"""A block manager of lists and dicts, to be read in five minutes."""
