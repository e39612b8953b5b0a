"""Histories: operations as data. Directed at one fault class each, or seeded and random."""
