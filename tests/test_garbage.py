"""A front end's garbage collector leaves alone what was loaded, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from service.garbage import leave_garbage

loaded = [[] for _ in range(5000)]
leave_garbage()
known = len(gc.get_objects())
assert known < 5000, known

class Node:
    pass

def cycles(count):
    for _ in range(count):
        node = Node()
        node.itself = node

looked = []
gc.callbacks.append(lambda phase, info: looked.append(phase))
cycles(1500)
assert not looked, "too early"
cycles(5000)
assert looked, "never"
assert len(gc.get_objects()) < 5000
"""


def test_it_looks_seldom_and_still_does():
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60)
