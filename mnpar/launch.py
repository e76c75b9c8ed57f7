"""Run scripts on several ranks: :func:`script`, which starts a whole one, its flags,
the files that these name, and thread ranks.

What is wrong with a command line is wrong on all ranks, and one of them reports it. Starting
processes is :mod:`mnpar.runtime.mpiexec`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import inspect
import io
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from mnpar import lazy, random
from mnpar.autograd.tape import Tape
from mnpar.communicators.communicator import Communicator, described
from mnpar.communicators.create import create_communicator
from mnpar.communicators.threads.transport import (
    ThreadTransport,
    current_transport,
    run_threads,
)
from mnpar.errors import DatasetError, suggestion
from mnpar.runtime import blas_threads
from mnpar.runtime.launcher import launched_after_first, launched_ranks, under_open_mpi
from mnpar.runtime.mpiexec import relaunch as relaunch
from mnpar.runtime.output import ALIKE
from mnpar.runtime.tracebacks import show_own_lines, to_own_lines

_above = lazy.names_above(__name__, Mesh="mnpar.parallel.mesh")


def parse_args(parser: argparse.ArgumentParser, **least: int) -> argparse.Namespace:
    """``parser.parse_args()``, except that one rank alone reports a wrong command line.

    That holds for a later ``parser.error(…)`` too, and for ``--threads``, which runs on one
    process, where the launcher has started several. What is printed from here on may hold letters
    that the output's encoding has not (``LC_ALL=en_US.ISO-8859-1``, ``PYTHONIOENCODING=ascii``):
    they become question marks, and do not end the job.

    Args:
        parser: of the script.
        least: the smallest number that a flag may have; one that is None may.

    Example:
        >>> import argparse, mnpar
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--epoch", type=int, default=5)
        >>> mnpar.launch.parse_args(parser, epoch=1)  # doctest: +SKIP
        Namespace(epoch=5)
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    if launched_after_first():
        parser.error = _leave_it_to_rank_0  # type: ignore[method-assign]
        # --help
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            args = parser.parse_args()
    else:
        args = parser.parse_args()
    for name, number in least.items():
        value = getattr(args, name)
        if value is not None and value < number:
            parser.error(f"--{name.replace('_', '-')} is at least {number}, not {value}")
    if getattr(args, "threads", None) and launched_ranks() > 1:
        parser.error(
            f"--threads is for one process, and the launcher has started {launched_ranks()}: "
            "choose one of them"
        )
    return args


def _leave_it_to_rank_0(message: str) -> NoReturn:
    """End as rank 0 does, which reports a wrong command line: later than it, as Open MPI's launcher
    then ends the others.
    """
    if under_open_mpi():
        time.sleep(ALIKE)
    sys.exit(2)


def started_ranks(args: argparse.Namespace, otherwise: int) -> int:
    """Return the number of ranks that there will be: those that run this already, if several,
    started by a launcher or as threads (``python -m mnpar check``); or ``args.threads``, if it is
    given.

    Args:
        args: what :func:`parse_args` returned.
        otherwise: the number in all other cases: that with which :func:`relaunch` is called.

    Example:
        >>> import argparse, mnpar
        >>> mnpar.launch.started_ranks(argparse.Namespace(threads=6), 4)
        6
    """
    here = current_transport.get()
    if here is not None:
        return here.size
    threads: int | None = getattr(args, "threads", None)
    if threads and threads is not True:  # True: --threads without a number
        return threads
    launched = launched_ranks()
    return launched if launched > 1 else otherwise


def command(ranks: int, threads: object = None) -> str:
    """Return what to type for so many ranks of this script: a usage error about their number
    names it.

    Args:
        ranks: the right number.
        threads: ``args.threads`` of what :func:`parse_args` returned: true for thread ranks.

    Example:
        >>> import sys, mnpar
        >>> sys.argv = ["examples/unet.py", "--threads", "3", "--epoch", "2"]
        >>> mnpar.launch.command(4, threads=3)
        'python examples/unet.py --epoch 2 --threads 4'
        >>> mnpar.launch.command(4)
        'mpiexec -n 4 python examples/unet.py --epoch 2'
    """
    script, *words = sys.argv
    others = []
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in ("--threads", "--ranks"):
            others.append(word)
        elif words and words[0].isdecimal():
            del words[0]
    line = shlex.join(["python", script, *others])
    if threads:
        return f"{line} --threads {ranks}"
    return f"mpiexec -n {ranks} {line}"


def seed(text: str) -> int:
    """The number that a flag ``--seed`` means: ``parser.add_argument("--seed",
    type=mnpar.launch.seed)``.

    Args:
        text: a number that all of numpy's generators take.

    Raises:
        argparse.ArgumentTypeError: it is none; argparse makes it a usage error.

    Example:
        >>> import mnpar
        >>> mnpar.launch.seed("-1")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: a seed is a whole number from 0 to 4294967295, not -1
    """
    if not (text.isdecimal() and int(text) < 2**32):
        raise argparse.ArgumentTypeError(
            f"a seed is a whole number from 0 to {2**32 - 1}, not {text}"
        )
    return int(text)


def folder(text: str) -> str:
    """The folder that a flag ``--out`` means: ``parser.add_argument("--out",
    type=mnpar.launch.folder)``.

    It does not make the folder, as every rank reads the command line. But it tells now, and not
    after hours of training, if nothing could be written there.

    Args:
        text: its path; empty: none.

    Raises:
        argparse.ArgumentTypeError: nothing can be written there; argparse makes it a usage error.

    Example:
        >>> import mnpar
        >>> mnpar.launch.folder("/dev/null/result")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: nothing can be written to /dev/null/result: Not a directory
    """
    there = os.path.abspath(text)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    trouble = None if os.path.isdir(there) else errno.ENOTDIR
    if text and trouble is None:
        try:
            tempfile.TemporaryFile(
                dir=there
            ).close()  # permissions do not tell all: root has them in /proc, too
        except OSError as error:
            trouble = error.errno or errno.EACCES
    if trouble is None:
        return text
    raise argparse.ArgumentTypeError(f"nothing can be written to {text}: {os.strerror(trouble)}")


def existing_folder(text: str) -> str:
    """The folder that a flag ``--data`` means, which has to be there:
    ``parser.add_argument("--data", type=…)``.

    Example:
        >>> import mnpar
        >>> mnpar.launch.existing_folder("/dev/null")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: there is no folder /dev/null
    """
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return text


@contextlib.contextmanager
def reading(comm: Communicator) -> Iterator[None]:
    """Around what reads a script's files, on all ranks or some: missing and damaged ones, or a
    missing package that has them, end the script, told in one line.

    Collective; none waits for what another could not read. Rank 0 prints the first error of all
    ranks, each exits with code 1.

    Args:
        comm: of all ranks that go on together.

    Raises:
        SystemExit: a file could not be read on one of the ranks.

    Example:
        >>> import mnpar
        >>> comm = mnpar.create_communicator("self")
        >>> with mnpar.launch.reading(comm):
        ...     train, test = mnpar.datasets.get_mnist(data="/dev")
        Traceback (most recent call last):
        SystemExit: 1
    """
    trouble = None
    try:
        yield
    except (OSError, DatasetError, ModuleNotFoundError) as error:
        trouble = " ".join(str(error).split())
    found = [each for each in comm.gather_obj(trouble) or () if each is not None]
    if found:
        print(f"{os.path.basename(sys.argv[0])}: error: {found[0]}", file=sys.stderr, flush=True)
    if comm.bcast_obj(bool(found)):  # it is printed: the first that exits ends the others
        sys.exit(1)


def dims(text: str) -> tuple[int, ...]:
    """The grid that a flag like ``--halopar 2x3`` means: ``parser.add_argument("--halopar",
    type=mnpar.launch.dims)``.

    Args:
        text: numbers from 1 on with an x between them.

    Raises:
        argparse.ArgumentTypeError: it is something else; the parser makes a usage error of it.

    Example:
        >>> import mnpar
        >>> mnpar.launch.dims("2x3"), mnpar.launch.dims("4")
        ((2, 3), (4,))
    """
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"a grid is numbers from 1 on with an x between them, like 2x2, not {text!r}"
        )
    return tuple([int(part) for part in parts])


class Parser(argparse.ArgumentParser):
    """The command line of a script that runs on ranks: argparse's parser, with each flag in a line,
    and with ``--ranks`` and ``--threads``, which say where the ranks come from.

    Args:
        description: what ``--help`` prints: usually the script's ``__doc__``.
        ranks: how many ranks :func:`script` starts where nobody says otherwise.
        exactly: the program is for so many ranks and no others; there is no flag ``--ranks`` then.
        check: ``check(parser, args)`` is called with what was read, on all ranks alike. It may call
            ``parser.error(…)``, or raise ValueError, which becomes the same, and set
            ``args.ranks``.
        flag: the name of ``--ranks``.

    Example:
        >>> import mnpar
        >>> parser = mnpar.launch.Parser("Train a network.", ranks=4)
        >>> parser.flag("--epoch -e", 10, "epochs")
        >>> parser.flag("--lr", 0.1, "learning rate")
        >>> parser.flag("--seed -s", mnpar.launch.seed, "of the weights", default=0)
        >>> parser.flag("--joint", False, "train the mean of all outputs")
        >>> parser.read()  # doctest: +SKIP
        Namespace(ranks=4, threads=None, epoch=10, lr=0.1, seed=0, joint=False)
    """

    def __init__(
        self,
        description: str | None,
        ranks: int = 2,
        *,
        exactly: bool = False,
        check: Callable[[Parser, argparse.Namespace], object] | None = None,
        flag: str = "--ranks",
    ) -> None:
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.exactly = exactly
        self._check = check
        self._ranks_flag = flag.lstrip("-").replace("-", "_")
        self._ranks = ranks
        self._least = {"threads": 1}
        self._division: _Division | None = None
        where = self.add_mutually_exclusive_group()
        if not exactly:
            where.add_argument(
                flag,
                type=int,
                metavar="N",
                help=f"ranks to start where no launcher has started several ({ranks})",
            )
            self._least[self._ranks_flag] = 1
        where.add_argument(
            "--threads",
            type=int,
            nargs="?",
            const=True,
            metavar="N",
            help="run on N ranks that are threads of this process (N: as many as else are started)",
        )

    def flag(
        self,
        names: str,
        value: Callable[[str], Any] | float | str,
        help: str,
        *,
        default: Any = None,
        least: int | None = 1,
        variable: str | None = None,
        group: argparse._ActionsContainer | None = None,
        **more: Any,
    ) -> None:
        """Add a flag.

        Args:
            names: its names, with spaces between them.
            value: its default, which tells its type, too; or its type, that is, a function of its
                text. False: the flag has no value, and switches something on.
            help: what ``--help`` says of it; the default is appended.
            default: the default, where ``value`` is a type.
            least: the smallest whole number that it may have; None: there is none.
            variable: of the environment, which has its value where the flag is not given.
            group: the group of flags that it belongs to.
            more: what ``add_argument`` takes, such as ``choices``.

        Example:
            >>> import mnpar
            >>> parser = mnpar.launch.Parser("Train.")
            >>> parser.flag("--model", "cnn", "the network", choices=["mlp", "cnn"])
            >>> parser.parse_args(["--model", "mlp"]).model
            'mlp'
        """
        long, *short = names.split()
        target = self if group is None else group
        if value is False:
            target.add_argument(long, *short, action="store_true", help=help, **more)
            return
        type_, default = (value, default) if callable(value) else (type(value), value)
        if default is not None:
            shown = "x".join(map(str, default)) if type_ is dims else default
            help = f"{help} ({shown})"
        if variable is not None:
            help = f"{help} (the variable {variable})"
            default = os.environ.get(variable, default)
        if type_ is int and least is not None:
            self._least[long.lstrip("-").replace("-", "_")] = least
        if type_ in _METAVARS:
            more.setdefault("metavar", _METAVARS[type_])
        target.add_argument(long, *short, type=type_, default=default, help=help, **more)

    def divide(
        self,
        names: str = "--divide",
        default: str = "",
        *,
        switches: Mapping[str, str] | None = None,
        **axes: int,
    ) -> None:
        """Add the flag ``--divide data=2,space=2x2``: among which ranks the work is divided.

        ``args.divide`` has the axes of a mesh, ``mnpar.Mesh(comm, **args.divide)``, and the script
        starts as many ranks as they take. Another number of ranks, an axis that the program does
        not know and a size that is none are usage errors. One size may be -1: all ranks that the
        others leave.

        Args:
            names: of the flag, with spaces between them.
            default: its value where it is not given and suits the ranks that there are; where it
                does not, the first axis has all of them, a grid as square as it can be.
            switches: flags that stand for a value of this one, and what is to be put into it:
                ``{"--blocks RxC": "space={}", "--batches": "data=-1"}``.
            axes: the axes that the program knows, and of how many numbers their sizes are: 1, or
                2 for a grid such as 2x2.

        Example:
            >>> import sys, mnpar
            >>> parser = mnpar.launch.Parser("Train.", ranks=1)
            >>> parser.divide(data=1, space=2)
            >>> sys.argv = ["train.py", "--divide", "data=2,space=1x2", "--threads"]
            >>> args = parser.read()
            >>> args.divide, args.ranks
            ({'data': 2, 'space': (1, 2)}, 4)
        """
        parse = _above("Mesh").parse
        ways = self.add_mutually_exclusive_group()
        self.flag(
            names,
            parse,
            f"names and sizes of a mesh's axes: {', '.join(axes)} ({default or 'one rank'})",
            group=ways,
            dest="divide",
            metavar="MESH",
        )
        for switch, text in (switches or {}).items():
            name, _, value = switch.partition(" ")
            help = f"{names.split()[0]} {text.format(value)}"
            if value:
                self.flag(
                    name,
                    lambda given, text=text: parse(text.format(given)),  # type: ignore[misc]
                    help,
                    group=ways,
                    dest="divide",
                    metavar=value,
                )
            else:
                ways.add_argument(
                    name, action="store_const", const=parse(text), dest="divide", help=help
                )
        self._division = _Division(names.split()[0], parse(default), axes)

    def read(self) -> argparse.Namespace:
        """Return the flags' values: :func:`parse_args`, and the checks. ``args.ranks`` is the
        number of ranks to start; ``args.threads`` the number of thread ranks, or None.
        """
        args = parse_args(self, **self._least)
        given = getattr(args, self._ranks_flag, None)
        args.ranks = self._ranks if given is None else given
        setattr(args, self._ranks_flag, args.ranks)
        if self._division is not None:
            self._division.settle(self, args, started_ranks(args, given or 0))
        if self._check is not None:
            try:
                self._check(self, args)
            except ValueError as error:
                self.error(str(error))
        if args.threads is True:
            args.threads = args.ranks
        started = started_ranks(args, args.ranks)
        if self.exactly and started != args.ranks:
            self.error(
                f"this program is made for {args.ranks} ranks, not {started}: "
                f"{command(args.ranks, args.threads)}"
            )
        return args

    def error(self, message: str) -> NoReturn:
        """Print the usage and what was wrong, and exit with code 2."""
        if self.exactly and f"--{self._ranks_flag}" in message.partition("arguments: ")[2].split():
            division = self._division
            message += "; this program has " + (
                f"{self._ranks} ranks, always" if division is None else f"those of {division.flag}"
            )
        super().error(message)


class _Division(NamedTuple):
    """The division of work that a script knows, as :meth:`Parser.divide` was given it.

    Args:
        flag: its first name.
        default: the axes where it is not given.
        axes: how many numbers the size of each axis is.
    """

    flag: str
    default: dict[str, Any]
    axes: dict[str, int]

    def settle(self, parser: Parser, args: argparse.Namespace, started: int) -> None:
        """Set ``args.divide``, without -1, and ``args.ranks``; end with a usage error if the axes
        are not the program's, or not for the ranks that there are.

        Args:
            parser: of the script.
            args: what was read; ``args.ranks`` are started where nobody says otherwise.
            started: the ranks that there are, or that were asked for; 0: nobody says.
        """
        divide = args.divide
        if divide is None:
            divide, n = self.default, math.prod(_numbers(self.default))
            if started not in (0, n):
                (first, numbers), *_ = self.axes.items()
                rows = max([r for r in range(1, math.isqrt(started) + 1) if started % r == 0])
                grid = (rows, started // rows, *(1,) * (numbers - 2))
                divide = {first: started if numbers == 1 else grid}
        self._check(parser, divide)
        free = [name for name, size in divide.items() if size == -1]
        known = math.prod([n for n in _numbers(divide) if n != -1])
        ranks = started or args.ranks
        if free:
            # as many as there are, or some that can be started
            ranks = max(ranks // known, 1) * known if started % known == 0 else started
            divide = {**divide, **dict.fromkeys(free, ranks // known)}
        else:
            ranks = known
        if started and (started % known if free else started != known):
            right = max(started // known, 1) * known if free else known
            parser.error(
                f"{self.flag} {_text(args.divide)} is for {'a multiple of ' if free else ''}"
                f"{known} rank{'' if known == 1 else 's'}, not {started}: "
                f"{command(right, args.threads)}"
            )
        args.divide, args.ranks = divide, ranks

    def _check(self, parser: Parser, divide: dict[str, Any]) -> None:
        for name, size in divide.items():
            if name not in self.axes:
                parser.error(f"{self.flag}: no axis {name!r}{suggestion(name, self.axes)}")
            if len(_numbers({name: size})) != self.axes[name]:
                right = "x".join(["2"] * self.axes[name])
                parser.error(
                    f"{self.flag} {_text({name: size})}: the axis {name} is given as {name}={right}"
                )


def _numbers(axes: Mapping[str, Any]) -> list[int]:
    """Return the sizes of a mesh's axes, those of grids one by one."""
    return [n for size in axes.values() for n in (size if isinstance(size, tuple) else (size,))]


def _text(axes: Mapping[str, Any]) -> str:
    return ",".join(
        [f"{name}={'x'.join(map(str, _numbers({name: size})))}" for name, size in axes.items()]
    )


def script(main: Callable[[Communicator, argparse.Namespace], object], parser: Parser) -> None:
    """Read the command line, and run ``main(comm, args)`` on each rank: on thread ranks with
    ``--threads``, on the launcher's if it has started several, or else on ranks that this call
    starts with mpiexec (:func:`relaunch`).

    Args:
        main: the program of a rank.
        parser: of the script.

    Raises:
        SystemExit: the command line is wrong; one rank has reported it.

    Example:
        A whole script::

            import mnpar


            def main(comm, args):
                mnpar.random.seed([args.seed, comm.rank])
                ...


            if __name__ == "__main__":
                parser = mnpar.launch.Parser(__doc__, ranks=4)
                parser.flag("--seed -s", mnpar.launch.seed, "of the weights", default=0)
                mnpar.launch.script(main, parser)
    """
    args = parser.read()
    if args.threads:
        run(main, ranks=args.threads, args=(args,))
    elif relaunch(args.ranks) or not parser.exactly:
        main(create_communicator(), args)
    else:
        parser.error(
            f"this program is made for {args.ranks} ranks, not 1; as threads of one process: "
            f"{command(args.ranks, threads=True)}"
        )


T = TypeVar("T")
_METAVARS: dict[Any, str] = {folder: "DIR", existing_folder: "DIR", dims: "RxC"}


def _check_program(program: Callable[..., Any], args: Any) -> None:
    """Raise TypeError if a program does not take its communicator, and its other arguments."""
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # a function of C
        return
    try:
        signature.bind(None, *args)
    except TypeError as error:
        call = ", ".join(["comm", *("…" for _ in args)])
        raise TypeError(
            f"run calls program({call}) on each rank, and {described(program)} takes {signature}: "
            f"{error}. Write lambda {call}: … or def program({call}): …"
        ) from None


def run(program: Callable[..., T], ranks: int = 2, args: tuple[Any, ...] = ()) -> list[T]:
    """Run ``program(comm, *args)`` on ranks that are threads of this process: no MPI,
    deterministic, made for finding errors.

    Only one rank runs at a time, and a deadlock is an error that shows what each rank waits for.

    Args:
        program: called once on each rank, with its communicator.
        ranks: how many.
        args: more arguments, the same for all ranks.

    Returns:
        What the ranks returned, in rank order.

    Raises:
        DeadlockError: no rank can go on.
        Exception: the first error of any rank, with a note that names the rank.

    Example:
        >>> import mnpar
        >>> mnpar.run(lambda comm: comm.allreduce_obj(comm.rank), ranks=4)
        [6, 6, 6, 6]
    """

    __tracebackhide__ = True  # notebooks and pytest show the callers' lines
    if not callable(program):
        raise TypeError(
            "run(program, ranks): the program is a function of the communicator, not "
            f"{described(program)}"
        )
    if not isinstance(ranks, int | np.integer) or ranks < 1:
        raise ValueError(f"a program runs on 1 rank or more, not on {ranks!r}")
    if not isinstance(args, tuple | list):
        raise TypeError(
            "run(program, ranks, args): args is a tuple, (x,) of one argument x, not "
            f"{described(args)}"
        )
    _check_program(program, args)
    blas_threads.use_one()
    # the caller's context is copied to each thread, and its generator must not be shared
    randomness = random.RankRandomness(ranks)

    def body(transport: ThreadTransport) -> T:
        randomness.begin(transport.rank)
        with Tape():
            return program(Communicator(transport), *args)

    try:
        return run_threads(body, ranks)
    except BaseException as error:
        to_own_lines(error)
        show_own_lines()
        raise
    finally:
        randomness.end()
