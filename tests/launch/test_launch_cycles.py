"""A thousand times hvd.init() and hvd.shutdown(): nothing is left behind."""

SCRIPT = """
import os, threading
import numpy as np
import hvd_keras as hvd

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def state():
    folders = ("fd", "task")
    return [len(os.listdir(f"/proc/self/{f}")) for f in folders], threading.active_count()

def cycle(number):
    hvd.init()
    total = hvd.allreduce(np.full(3, hvd.rank() + number, np.int64), op=hvd.Sum)
    assert total.numpy().tolist() == [1 + 2 * number] * 3
    hvd.shutdown()
    assert not hvd.is_initialized()

for number in range(50):  # what is made once, by TensorFlow for example
    cycle(number)
before, memory = state(), resident()
for number in range(1000):
    cycle(number)
assert state() == before, (before, state())
grown = resident() - memory
assert grown < 16 << 20, f"{grown} bytes more"
print("clean")
"""


def test_a_thousand_cycles_leave_nothing(hvdrun):
    done = hvdrun.run_python(2, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clean") == 2
