"""Answers to the exercises of lesson 7; there are others."""

import numpy as np

import mnpar
import mnpar.functions as F


def last_of_the_left(comm, piece):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.send(piece[-1:], right)  # send never waits
    return comm.recv(left)


def until_all_are_content(comm, error):
    steps = 0
    while comm.allreduce(np.array(error), "max") > 0.1:
        error = error / 2
        steps = steps + 1
    return error, steps


def two_halves(comm, w, x):
    if comm.rank == 0:
        h = F.tanh(w * x)
        F.send(h, comm, rank=1)
        loss = F.recv(comm, rank=1)
        mnpar.backward()  # the loss is rank 1's: take part in its backward
        return loss.item()
    h = F.recv(comm, rank=0)
    loss = F.sum((w * h) ** 2)
    F.send(loss, comm, rank=0)
    loss.backward()
    return loss.item()
