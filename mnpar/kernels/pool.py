"""Threads that wait without Python for parts of loops.

Waking a thread of Python takes as long as most loops run. So the threads of a pool are in compiled
code while they have nothing to do: they look again and again for a job (for ``POOL_SPIN``
microseconds, and only where cores are free), and then sleep until one comes. A job lies in the
memory of the thread that waits for it, which takes parts of it from the front, while others take
them from the back: so threads find in their caches what they have written before. Whoever has given
a job takes it back from a thread that has not begun it, and never waits for one that sleeps or has
lost its core.

A pool lies in memory as numbers of eight bytes: the address of ``divide``, how many threads there
are, how often they look; and for each thread a state, a mutex and a condition. A state is one of
those below, or the address of a job.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time

from mnpar.kernels import compiler, machine_code, tuning
from mnpar.kernels.atomics import (
    add,
    await_signal,
    call,
    exchange_if,
    get,
    give_way,
    lock,
    nap,
    pause,
    put,
    signal,
    unlock,
)
from mnpar.kernels.compiler import Loop, compiled, formula

# Places in a pool, in bytes; and behind ``_HEAD`` in what each thread has.
_DIVIDE, _WORKERS, _SPINS, _HEAD = 0, 8, 16, 128
_MUTEX, _CONDITION, _SLOT = 64, 128, 192  # as large as those of any system
# States of a thread.
_AWAKE, _ASLEEP, _BUSY = range(3)
# Places in a job.
_PART, _ARGUMENTS, _N, _PARTS, _TAKEN, _BACK, _ENDED, _BEGUN, _STATUS = range(0, 72, 8)
_YIELDS = 32  # looks between two in which a thread gives way
_NAP = 20  # µs; of a thread that waits for the last parts of its job, where it may not spin or
_PATIENCE = 64  # has done so for this many times as long as one that waits for a job


@formula
def _do_part(job: int, thread: int, k: int) -> None:
    N, parts = get(job + _N), get(job + _PARTS)
    begin, end = N * k // parts, N * (k + 1) // parts
    status = call(get(job + _PART), get(job + _ARGUMENTS), thread, begin, end)
    if status != 0:
        put(job + _STATUS, status)


@formula
def _claim_next(pool: int, slot: int, job: int) -> int:
    """Give the next thread from ``slot`` on that has nothing to do a job; return the slot behind
    it, -1 if there is none.
    """
    workers = get(pool + _WORKERS)
    while slot < workers:
        state = pool + _HEAD + slot * _SLOT
        slot += 1
        if exchange_if(state, _AWAKE, job):
            return slot
        if exchange_if(state, _ASLEEP, job):
            # it has looked before this, or does with the mutex
            lock(state + _MUTEX)
            unlock(state + _MUTEX)
            signal(state + _CONDITION)
            return slot
    return -1


def _divide(
    pool: int, part: int, arguments: int, N: int, parts: int, threads: int, job: int
) -> None:
    """Compute ``part(arguments, thread, begin, end)`` for parts of N things, on this thread (0) and
    up to ``threads`` - 1 others; ``job`` is room.
    """
    put(job + _PART, part)
    put(job + _ARGUMENTS, arguments)
    put(job + _N, N)
    put(job + _PARTS, parts)
    put(job + _TAKEN, 0)
    put(job + _BACK, 0)
    put(job + _ENDED, 0)
    put(job + _BEGUN, 0)
    put(job + _STATUS, 0)
    given = 0
    slot = 0
    while given < threads - 1:
        slot = _claim_next(pool, slot, job)
        if slot < 0:
            break
        given += 1
    k = 0
    while add(job + _TAKEN, 1) < parts:
        _do_part(job, 0, k)
        k += 1
    if given > 0:
        for slot in range(get(pool + _WORKERS)):
            if exchange_if(pool + _HEAD + slot * _SLOT, job, _AWAKE):
                given -= 1
        left = get(pool + _SPINS) * _PATIENCE
        while get(job + _ENDED) < given:
            if left > 0:
                left -= 1
                pause()
                if left % _YIELDS == 0:
                    give_way()
            else:
                nap(_NAP)


def _serve(pool: int, slot: int) -> None:
    """Do parts of jobs, for ever."""
    state = pool + _HEAD + slot * _SLOT
    put(state, _AWAKE)
    while True:
        job = get(state)
        left = get(pool + _SPINS)
        while job == _AWAKE and left > 0:
            left -= 1
            pause()
            if left % _YIELDS == 0:
                give_way()
            job = get(state)
        if job == _AWAKE:
            if exchange_if(state, _AWAKE, _ASLEEP):
                lock(state + _MUTEX)
                while get(state) == _ASLEEP:
                    await_signal(state + _CONDITION, state + _MUTEX)
                unlock(state + _MUTEX)
        elif exchange_if(state, job, _BUSY):  # or it has been taken back
            thread = add(job + _BEGUN, 1) + 1
            parts = get(job + _PARTS)
            while add(job + _TAKEN, 1) < parts:
                _do_part(job, thread, parts - 1 - add(job + _BACK, 1))
            add(job + _ENDED, 1)  # from here on the job may be gone
            put(state, _AWAKE)


def _spin(times: int) -> None:
    for _ in range(times):
        pause()


MOST = 255  # threads of a pool, beside those that ask
_DIVIDES = Loop(_divide, entry="address")  # type: ignore[arg-type]
_SERVES, _SPINS_ALONE = compiled(_serve), compiled(_spin)


class ThreadPool:
    """A pool in memory, without threads at first. It is never freed, because a thread that sleeps
    or spins there never ends.

    Attributes:
        address: of its memory, for loops.
    """

    def __init__(self) -> None:
        room = _HEAD + _SLOT * (MOST + 1)
        self._memory = machine_code.keep(ctypes.create_string_buffer(room))
        self.address = -(-ctypes.addressof(self._memory) // _SLOT) * _SLOT
        self._serve = _SERVES.at("d")
        self._spins = 0
        self._at(_DIVIDE).value = _DIVIDES.address()

    def _at(self, place: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + place)

    def add(self, slot: int) -> None:
        """Make room for a thread, the slot-th, which then calls :meth:`serve`."""
        place = _HEAD + slot * _SLOT
        system = ctypes.CDLL(None)
        for name, offset in (("mutex", _MUTEX), ("cond", _CONDITION)):
            made = getattr(system, f"pthread_{name}_init")
            made(ctypes.c_void_p(self.address + place + offset), None)
        self._at(place).value = _BUSY
        self._at(_WORKERS).value = slot + 1

    def serve(self, slot: int) -> None:
        """Do parts of loops, for ever."""
        self._serve(self.address, slot)

    def let_spin(self, may: bool) -> None:
        """Let threads that wait look for a job for a while before they sleep, or not."""
        if may and not self._spins:
            self._spins = int(tuning.POOL_SPIN * _spins_in_a_microsecond())
        self._at(_SPINS).value = self._spins if may else 0


@functools.cache
def _spins_in_a_microsecond() -> float:
    spin, times, seconds = _SPINS_ALONE.at("d"), 2000, []
    for _ in range(5):
        begin = time.perf_counter()
        spin(times)
        seconds.append(time.perf_counter() - begin)
    return times / max(min(seconds), 1e-9) * 1e-6


def is_usable() -> bool:
    """Return whether pools work here: where loops are compiled, but on Windows, which has no
    pthreads.
    """
    return os.name == "posix" and compiler.is_usable()
