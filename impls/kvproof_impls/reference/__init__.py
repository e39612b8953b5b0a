"""The reference block manager and scheduler: the specification in code, with its state in arrays.

pool.py       who holds a block, which are free, which may be evicted and in what order
tables.py     the block tables of all sequences, as the one matrix a kernel reads
hashing.py    chained block keys, stable in every process
prefix.py     which block holds which history: match, publish, forget
manager.py    the operations on sequences, each all or nothing
adapter.py    the factories that the suite opens
"""
