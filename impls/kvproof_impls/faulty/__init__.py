"""Planted faults over the reference: what the harness is tested by.

registry.py   the record of a fault and the decorator that plants it
pool.py       POOL, FREE           sharing.py  SHARE, TRUNC
tables.py     TABLE, STEP, SELF, DATA, PROBE    batch.py  BATCH, SLOT, SIZE, WIRE
keys.py       PREFIX, block keys   prefix.py   PREFIX, the rest
evict.py      EVICT
swap.py       SWAP                 errors.py   ERR
scheduling.py SCHED: budgets, plans, ranges, order, the example of the chapter, cost
progress.py   SCHED: what never fits, deadlocks, the number of tokens
lives.py      SCHED: aborts, bad submits, what ended requests leave behind
preemption.py PREEMPT, who gives way
ranks.py      TP, tensor-parallel groups
resume.py     PREEMPT and META, what changes the output
adapter.py    opens each by name: `faulty:shared_block_queued`
"""
