"""A ring: each rank passes its number to the next one, and backward passes the gradients back.

mpiexec -n 4 python examples/ring.py
"""

import numpy as np

import mnpar
import mnpar.functions as F

comm = mnpar.create_communicator()
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

x = mnpar.Variable(np.array([comm.rank + 1.0]))
F.send(x, comm, rank=right)
y = F.recv(comm, rank=left)
loss = F.sum(x * y)
# of the sum of all ranks' losses: x gets a gradient from its own loss, and one from the right
loss.backward()

print(
    f"rank {comm.rank} of {comm.size}: x = {x.item():g}, loss = {loss.item():g}, "
    f"gradient = {x.grad.item():g}; left + right = {left + 1} + {right + 1}"
)
