"""A block manager and a scheduler of lists and dicts, to be read in five minutes."""
