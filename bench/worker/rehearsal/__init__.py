"""Rehearsal: one rank of a job through this suite's own worker code and DeepSpeed, without what it needs.

Tensors are fake (shapes, types and storages, but no data), the process group is fake (collectives return at
once), weights are never read. What is left is the order in which storages come and go, which is what the
memory pass looks at.

    stage.py    the fake world: tensors, process group, and what must stand in for code that needs values
    play.py     one rehearsal
    fresh.py    many of them, each in its own process
"""
