"""Example extensions: one per file, each built on the public surface alone, each tested at
every crash point.
"""
